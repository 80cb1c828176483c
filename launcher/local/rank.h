// The supervisor's record of one rank.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "launcher/local/rank_stream.h"

namespace launcher {

/// The committed steps that ranks have reported, by the name of the run: a script may train several
/// runs, one after the other. Holds at most 1,000 runs, which a rank's environment has room for;
/// ignores later ones.
class CommittedSteps {
 public:
  /// Replaces the step of a run. Ignores a negative one.
  void set(const std::string& run, std::int64_t step);
  /// Sets all of `newer`.
  void update(const CommittedSteps& newer);
  /// Sets those of `other` that are higher. Returns whether there are any.
  [[nodiscard]] bool raise(const CommittedSteps& other);

  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// "RUN=STEP RUN=STEP", as ranks find it in DTRUN_COMMITTED.
  [[nodiscard]] std::string text() const;

 private:
  std::map<std::string, std::int64_t> steps_;
};

/// How a process ended.
struct RankEnd {
  /// Since the ranks were started; of another node's rank: when its end was reported.
  std::int64_t time_ns = 0;
  bool by_signal = false;
  int code = 0;  // exit status, or signal

  /// True if it ended like a job that was asked to save and stop.
  [[nodiscard]] bool saved() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::interrupted);
  }
  [[nodiscard]] bool failed() const { return by_signal || (code != 0 && !saved()); }
  /// True if it says that another rank's failure ended it.
  [[nodiscard]] bool blames_another() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::comm);
  }
  [[nodiscard]] bool timed_out() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::timeout);
  }
  [[nodiscard]] int exit_status() const { return by_signal ? 128 + code : code; }
  [[nodiscard]] bool terminated() const { return by_signal && code == SIGTERM; }
};

/// The last error of a program, as it would have written it to its standard error.
struct ToldError {
  int status = 0;       // that it is about to exit with
  bool of_all = false;  // by its own account every rank would fail so
  std::string line;

  [[nodiscard]] bool blames_another() const {
    return status == static_cast<int>(dtrain::base::ErrorKind::comm);
  }
};

/// A checkpoint as a rank reported it. One message sets all of it, so that all of it is of one run.
struct ReportedCheckpoint {
  std::int64_t step = -1;          // -1: there is none
  std::string resume_advice = {};  // how to resume from it
  std::string requeue_file = {};   // asks for another start of its run
};

struct Rank {
  int index = 0;   // in the job
  int node = 0;    // where it runs; the record of a rank elsewhere has no descriptors
  pid_t pid = -1;  // in its own machine
  dtrain::base::Descriptor pidfd = {};    // readable once the process has ended
  dtrain::base::Descriptor control = {};  // dtrun's end of DTRUN_CONTROL_FD
  std::string control_partial = {};
  RankStream output = {};
  RankStream error = {};
  std::int64_t step = -1;       // last one it reported
  std::int64_t waited_us = 0;   // for others, by its own account, up to that step
  std::int64_t signs = 0;       // of life: how often it has said that it goes on
  std::int64_t told_signs = 0;  // those that node 0 was told of, and when
  std::int64_t told_ns = 0;
  std::string run = {};                 // that it trains, by its own name for it
  ReportedCheckpoint checkpoint = {};   // the last that stands, unless a later run has begun
  CommittedSteps committed_steps = {};  // of all runs
  std::string requeue_file = {};        // of the checkpoints that it reports from now on
  std::string records = {};        // where it is (docs/guide/dtrun.md), as it has answered so far
  bool has_records = false;        // the answer is whole
  bool records_are_last = false;   // it fails: it gave them unasked and answers no more
  std::int64_t records_signs = 0;  // what `signs` was when the answer began
  std::string hang = {};           // the others wait for it: for what, and where it was
  bool stopped = false;            // by SIGSTOP or the like, for too long
  bool lost = false;               // its node is lost, so its end is unknown
  std::optional<ToldError> told = {};
  std::optional<RankEnd> end = {};
  std::optional<RankEnd> orphan = {};  // what the leader left behind when a stop ended it

  [[nodiscard]] bool running() const { return !end && !lost; }
  /// Until it is asked again; what one that fails or has ended said last stays.
  void forget_records() {
    if (!running() || records_are_last) return;
    records.clear();
    has_records = false;
  }
  /// Forgets an answer after which it went on.
  void forget_old_records() {
    if (signs != records_signs) forget_records();
  }
  /// Takes the end of a process that its leader left behind in its group. If a stop's SIGTERM ended
  /// the leader (a shell), the end of the program that it had started counts instead.
  void take_orphan(const RankEnd& ended);
};

/// Returns whether any rank has made a step.
[[nodiscard]] bool has_begun(const std::vector<Rank>& ranks);
/// Returns whether both ranks reported the same error, but for their own numbers in it. Full
/// devices are one error, whatever their numbers.
[[nodiscard]] bool same_error(const Rank& rank, const Rank& culprit);

/// Returns whether `rank`, which ended later, is why the culprit did: this one blames another, and
/// the rank told an error of its own. A program whose GPU failed may take seconds to end.
[[nodiscard]] bool explains(const Rank& rank, const Rank& culprit);

/// Takes bytes of the control descriptor (docs/guide/dtrun.md). Returns whether they reported an error.
[[nodiscard]] bool read_control(Rank& rank, std::string_view bytes);

}  // namespace launcher
