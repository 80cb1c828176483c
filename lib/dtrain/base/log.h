// Lines for people on standard error, reports of errors, and when a program says that it waits.
// Whole lines, one write each, so that ranks do not mix within a line.
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

/// Prints the one line "dtrain: error: ...", or has dtrun print it, and returns the exit status.
[[nodiscard]] int report_error(ErrorKind kind, std::string message, ErrorScope scope);

/// report_error for the exception now being handled. Call inside a catch block. Error gives its
/// kind; std::bad_alloc, and a thread that the system does not start, give `memory`; all else
/// `internal`.
[[nodiscard]] int report_current_exception(ErrorScope scope = ErrorScope::own);

/// From now on an exception that leaves a thread, e.g. one that a library started, ends the process
/// with one line and the status of its kind, instead of by a signal.
void report_unhandled_exceptions() noexcept;

/// Writes `message` to the file that TORCHELASTIC_ERROR_FILE names, if it is set, as
/// torch.distributed.elastic does: its time is that of this call, and what stands where Python's
/// call stack would is shown to the user. The file is readable for its owner alone. A link or
/// another user's file is left as it is; then, as for any other failure, nothing is written.
void write_error_file(std::string_view message) noexcept;

/// The content of such a file, in ASCII: other characters become '?'. time: seconds since 1970.
[[nodiscard]] std::string error_file_content(std::string_view message, long long time);

/// When to report a wait: at first after `first`, then after pauses that double up to a minute.
///
/// Threads: one.
class WaitingTimes {
 public:
  explicit WaitingTimes(std::chrono::seconds first = std::chrono::seconds(2)) : pause_(first) {}

  /// Returns whether it is time for a line, which sets the next time.
  [[nodiscard]] bool take() {
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

/// A rank's lines on standard error about whom it waits for.
///
/// Threads: one.
class WaitingLines {
 public:
  /// limit: of the wait. advice: ends the first line; empty: none.
  WaitingLines(std::chrono::milliseconds limit, std::string advice)
      : limit_(limit), advice_(std::move(advice)) {}

  /// Prints "waiting for WHOM, 2 s of 10 min (--comm-timeout)" if it is time for a line; `whom` is
  /// asked only then.
  void show(const std::function<std::string()>& whom);
  [[nodiscard]] Clock::time_point next() const { return times_.next(); }

 private:
  WaitingTimes times_;
  std::chrono::milliseconds limit_;
  std::string advice_;
};

}  // namespace dtrain::base
