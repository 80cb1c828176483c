// Records a rank's process, output streams, progress and exit.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "launcher/local/checkpoint_reports.h"
#include "launcher/local/rank_stream.h"

namespace launcher {

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
  /// True if the exit status says that another rank's failure ended it.
  [[nodiscard]] bool blames_another() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::comm);
  }
  [[nodiscard]] bool timed_out() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::timeout);
  }
  [[nodiscard]] int exit_status() const { return by_signal ? 128 + code : code; }
  [[nodiscard]] bool terminated() const { return by_signal && code == SIGTERM; }
};

/// An error that a program reports to dtrun instead of writing it to its standard error.
struct ReportedError {
  int status = 0;          // the status with which it is about to exit
  bool is_shared = false;  // the rank expects every rank to fail with this error
  std::string line;

  [[nodiscard]] bool blames_another() const {
    return status == static_cast<int>(dtrain::base::ErrorKind::comm);
  }
};

/// A rank's response to a request for its position and open collectives (docs/guide/dtrun.md).
struct RecordsResponse {
  std::string text = {};  // as received
  bool is_complete = false;
  bool is_last = false;        // sent unasked before the rank fails; it responds no more
  std::int64_t heartbeat = 0;  // `Rank::heartbeats` when the response began
};

/// A rank's process, output streams, reports and end. A rank of another node has no descriptors
/// here.
struct Rank {
  int index = 0;                          // in the job
  int node = 0;                           // where it runs
  pid_t pid = -1;                         // on its own machine
  dtrain::base::Descriptor pidfd = {};    // readable once the process has ended
  dtrain::base::Descriptor control = {};  // dtrun's end of DTRUN_CONTROL_FD
  std::string control_partial = {};
  RankStream output = {};
  RankStream error = {};
  std::int64_t step = -1;       // the last one that it reported
  std::int64_t waited_us = 0;   // total wait for other ranks up to that step
  std::int64_t heartbeats = 0;  // number received: steps and "busy" messages
  CheckpointReports checkpoints = {};
  RecordsResponse records = {};
  std::string hang = {};  // of a rank that others wait for: the collective, and its position
  bool stopped = false;   // by SIGSTOP or the like, for too long
  bool lost = false;      // its node is lost, so its end is unknown
  std::optional<ReportedError> reported_error = {};
  std::optional<RankEnd> end = {};
  std::optional<RankEnd> orphan = {};  // end of a process that its leader left behind

  [[nodiscard]] bool running() const { return !end && !lost; }
  /// Discards its response, unless it was the last one of a rank that fails or has ended.
  void forget_records() {
    if (!running() || records.is_last) return;
    records.text.clear();
    records.is_complete = false;
  }
  /// Discards a response that is older than the last heartbeat.
  void forget_old_records() {
    if (heartbeats != records.heartbeat) forget_records();
  }
  /// Records the end of an orphan, a process that the rank's leader left behind in its group. If a
  /// stop's SIGTERM ended the leader (a shell), the end of the orphan replaces that of the leader.
  void take_orphan(const RankEnd& ended);
};

/// Returns whether any rank has made a step.
[[nodiscard]] bool has_begun(const std::vector<Rank>& ranks);
/// Returns whether both ranks reported the same error, apart from their own ranks in it.
/// Out-of-memory errors are the same error, whatever their numbers.
[[nodiscard]] bool same_error(const Rank& rank, const Rank& culprit);

/// Returns whether `rank`, which ended later, caused the culprit's end: the culprit blames another
/// rank, and `rank` reported an error of its own. A program whose GPU failed may take seconds to
/// end.
[[nodiscard]] bool explains(const Rank& rank, const Rank& culprit);

/// Applies bytes from the control socket (docs/guide/dtrun.md). Returns whether they reported an
/// error.
[[nodiscard]] bool read_control(Rank& rank, std::string_view bytes);

}  // namespace launcher
