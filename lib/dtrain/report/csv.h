// The figures of runs as comma-separated values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/report/run_record.h"

namespace dtrain::report {

/// First characters of a written table: a file that starts with them may be overwritten.
inline constexpr std::string_view kCsvMark = "run,step";

/// A header and a line for each step of each run: the run's name, the step, and every figure that a
/// run has, empty where it is not known. Numbers keep every bit.
[[nodiscard]] std::string csv_of(const std::vector<RunRecord>& runs);

}  // namespace dtrain::report
