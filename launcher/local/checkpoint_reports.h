// Records the checkpoints that ranks report.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace launcher {

/// For each run, the step of the latest committed checkpoint that a rank reported. A job may train
/// several runs, one after the other. Holds at most 1,000 runs, so that they fit into a rank's
/// environment, and ignores later ones.
class CommittedSteps {
 public:
  /// Replaces the step of a run. Ignores a negative one.
  void set(const std::string& run, std::int64_t step);
  /// Replaces the steps of all runs in `newer`.
  void update(const CommittedSteps& newer);
  /// Replaces the steps that are higher in `other`. Returns whether there are any.
  [[nodiscard]] bool raise(const CommittedSteps& other);

  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// "RUN=STEP RUN=STEP", as ranks find it in DTRUN_COMMITTED.
  [[nodiscard]] std::string text() const;

 private:
  std::map<std::string, std::int64_t> steps_;
};

/// A checkpoint as a rank reported it. One message sets all fields, so that they belong to one run.
struct ReportedCheckpoint {
  std::int64_t step = -1;          // -1: there is none
  std::string resume_advice = {};  // how to resume from it
  std::string requeue_file = {};   // written to request another start of its run
};

/// The checkpoints that a rank has reported.
struct CheckpointReports {
  std::string run = {};                 // name of the run that it trains
  ReportedCheckpoint latest = {};       // the latest committed one of that run
  CommittedSteps committed_steps = {};  // of all runs
  std::string requeue_file = {};        // of the checkpoints that it reports from now on
};

}  // namespace launcher
