// Log lines and error reports on standard error, and periodic "waiting for" lines. Each line is one
// write, so that lines of several ranks do not interleave.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/base/clock.h"
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

/// Prints the line "dtrain: error: ...", directly or through dtrun, and returns the exit status.
[[nodiscard]] int report_error(ErrorKind kind, std::string message, ErrorScope scope);

/// report_error for the exception being handled; call it inside a catch block. The kind is that of
/// an Error, `memory` for std::bad_alloc and for a thread that cannot be started, otherwise
/// `internal`.
[[nodiscard]] int report_current_exception(ErrorScope scope = ErrorScope::own);

/// Makes an exception that escapes a thread (e.g. of a library) end the process with one error line
/// and the exit status of its kind, instead of by SIGABRT.
void report_unhandled_exceptions() noexcept;

/// Writes `message` to the file that TORCHELASTIC_ERROR_FILE names, if it is set, in the format of
/// torch.distributed.elastic, with the current time. The message also fills the field for Python's
/// call stack, which torchrun prints. The file is readable by its owner alone. Links and other
/// users' files are left unchanged; all failures are ignored.
void write_error_file(std::string_view message) noexcept;

/// The content that write_error_file writes, in ASCII: other characters become '?'. time: seconds
/// since 1970.
[[nodiscard]] std::string error_file_content(std::string_view message, long long time);

/// Schedules reports of a wait: the first after `first`, then with pauses that double up to about a
/// minute.
///
/// Threads: one.
class ReportTimer {
 public:
  explicit ReportTimer(std::chrono::seconds first = std::chrono::seconds(2)) : pause_(first) {}

  /// Returns whether a report is due, and if so schedules the next one.
  [[nodiscard]] bool is_due() {
    if (Clock::now() < next_) return false;
    pause_ = std::min(2 * pause_, kLongest);
    next_ = Clock::now() + pause_;
    return true;
  }
  [[nodiscard]] Clock::time_point next() const { return next_; }
  /// Seconds since the wait began.
  [[nodiscard]] double waited() const { return seconds_since(start_); }

 private:
  static constexpr std::chrono::seconds kLongest{64};

  Clock::time_point start_ = Clock::now();
  std::chrono::seconds pause_;
  Clock::time_point next_ = start_ + pause_;
};

/// Prints lines about the ranks for which this one is waiting.
///
/// Threads: one.
class WaitReporter {
 public:
  /// limit: the longest wait, for the line. advice: appended to the first line; empty: none.
  WaitReporter(std::chrono::milliseconds limit, std::string advice)
      : limit_(limit), advice_(std::move(advice)) {}

  /// Prints "waiting for WHOM, 2 s of 10 min (--comm-timeout)" if a line is due; `whom` is called
  /// only then.
  void report(const std::function<std::string()>& whom);
  [[nodiscard]] Clock::time_point next() const { return times_.next(); }

 private:
  ReportTimer times_;
  std::chrono::milliseconds limit_;
  std::string advice_;
};

}  // namespace dtrain::base
