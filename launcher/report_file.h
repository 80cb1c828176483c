// Writes how a job ended for programs to read (docs/dtrun.md, "The report file").
#pragma once

#include <string>
#include <string_view>

#include "launcher/history.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// The content of the file. status: dtrun's.
[[nodiscard]] std::string report_text(const History& history, const Placement& placement,
                                      int status, const std::string& why_no_restart);

/// Returns whether a text begins as report_text does, or is empty: it may be replaced by a report.
[[nodiscard]] bool is_report_or_empty(std::string_view begin);

}  // namespace launcher
