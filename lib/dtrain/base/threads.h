// Finds out whether the system will start the threads that a program is about to need.
#pragma once

#include <cstdint>

namespace dtrain::base {

/// Starts so many threads at once and ends them again. Libraries that cannot start theirs later
/// wait for ever, or end the process.
///
/// Throws: Error{memory} telling how many the system started, and why no more.
void require_threads(std::int64_t count);

}  // namespace dtrain::base
