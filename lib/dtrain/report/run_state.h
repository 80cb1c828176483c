// State of a run: whether it is running, or how it ended.
#pragma once

#include <string>

#include "dtrain/report/run_record.h"

namespace dtrain::report {

struct RunState {
  /// "finished", "running", "stopped" (and saved), "failed", "dead" (its process disappeared
  /// without an end record), or "unknown".
  std::string kind;
  std::string text;  ///< for people
};

[[nodiscard]] RunState state_of(const RunRecord& run);

}  // namespace dtrain::report
