// How one attempt to run the job ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/rank.h"
#include "launcher/report.h"
#include "launcher/step_clock.h"

namespace launcher {

struct AttemptEnd {
  using Seconds = std::chrono::duration<double>;

  int status = 0;                   // dtrun's, if no attempt follows
  bool has_failed = false;          // a rank failed, and the others were ended because of it
  std::string how;                  // "rank 1 exited with status 7"
  std::optional<int> culprit = {};  // the rank that failed first
  std::optional<int> node = {};     // the culprit's, or the one that was lost
  int request = 0;                  // the last signal that asked the job to stop; 0: none
  bool is_left_behind = false;      // a process of it cannot be killed
  bool has_lost_node = false;       // another launcher cannot be reached any more
  bool is_reporting = false;        // the program reported steps, checkpoints or errors to dtrun
  std::int64_t step = -1;           // the newest that a rank reported; -1: none
  ReportedCheckpoint checkpoint;    // newest_checkpoint of the ranks
  CommittedSteps committed_steps;   // of all runs of a script
  Seconds duration{0};              // from the start of the ranks to the end of the last process
  std::optional<Seconds> recovery;  // StepClock::recovery
};

/// Collects the end of an attempt that is over. start: of its ranks. steps: is told of a failure.
[[nodiscard]] AttemptEnd attempt_end(const Verdict& verdict, const std::vector<Rank>& ranks,
                                     StepClock::Time start, StepClock& steps);

}  // namespace launcher
