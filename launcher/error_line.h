// Writes to dtrun's standard error while no ranks run.
#pragma once

#include <string>

namespace launcher {

/// Writes the text to standard error; gives up after 1 s, since a terminal that nobody reads must
/// not keep the supervisor.
void write_error_for_a_while(const std::string& text);

}  // namespace launcher
