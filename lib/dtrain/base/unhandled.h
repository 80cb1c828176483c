// Handles exceptions that nobody catches.
#pragma once

namespace dtrain::base {

/// From now on an exception that leaves a thread, e.g. one that a library started, ends the process
/// with one line and the status of its kind, instead of by a signal.
void report_unhandled_exceptions() noexcept;

}  // namespace dtrain::base
