// What dtrun tells of a job's attempts: lines about restarts, and the report file that programs
// read (docs/dtrun.md, "The report file").
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/nodes/placement.h"
#include "launcher/report.h"
#include "launcher/restart_policy.h"

namespace launcher {

/// All attempts to run a job, in order, and what was measured over them.
struct History {
  std::vector<AttemptEnd> attempts;
  std::chrono::duration<double> useful{0};  // StepClock::useful
  std::chrono::duration<double> wall{0};    // since the first start, waits included
};

/// "restart 1 of 3 in 1.0 s: rank 1 exited with status 7 at step 57; the newest reported checkpoint
/// is of step 50".
[[nodiscard]] std::string restart_line(const AttemptEnd& end, const RestartDecision& decision,
                                       const RestartPolicy& policy, int max_restarts);

/// The report on a job that was started again: a line for each attempt (of many the last), then
/// recovery times and effective training time as far as they are known. Empty for one attempt.
[[nodiscard]] std::vector<std::string> history_lines(const History& history);

/// The checkpoint of the last attempt that had one; step -1: none.
[[nodiscard]] ReportedCheckpoint newest_checkpoint(const History& history);

/// The last line of a job that failed: why it is not started again. why: not empty.
[[nodiscard]] std::string no_restart_line(const History& history, const std::string& why);

/// The content of the file. status: dtrun's.
[[nodiscard]] std::string report_text(const History& history, const Placement& placement,
                                      int status, const std::string& why_no_restart);

/// Returns whether a text begins as report_text does, or is empty: it may be replaced by a report.
[[nodiscard]] bool is_report_or_empty(std::string_view begin);

}  // namespace launcher
