// Writes how a job ended for programs to read (docs/dtrun.md, "The report file").
#pragma once

#include <string>

#include "launcher/history.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// The content of the file. status: dtrun's.
[[nodiscard]] std::string report_text(const History& history, const Placement& placement,
                                      int status, const std::string& why_no_restart);

}  // namespace launcher
