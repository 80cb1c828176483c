// Lines for people on standard error. Whole lines, one write each, so that ranks do not mix within
// a line.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/launcher_link.h"

namespace dtrain::base {

/// Writes "dtrain: TEXT\n" to standard error in one write.
void log_line(std::string_view text);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line("warning: " + fmt::format(format, std::forward<Args>(args)...));
}

/// Prints the one line "dtrain: error: ...", or has dtrun print it, and returns the exit status.
[[nodiscard]] int report_error(ErrorKind kind, std::string message, ErrorScope scope);

/// report_error for the exception now being handled. Call inside a catch block. Error gives its
/// kind; std::bad_alloc, and a thread that the system does not start, give `memory`; all else
/// `internal`.
[[nodiscard]] int report_current_exception(ErrorScope scope = ErrorScope::own);

}  // namespace dtrain::base
