// User-facing errors with their exit statuses (docs/guide/exit-status.md), and assertions, which
// fail only because of a bug in dtrain.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

/// If `condition` is false, throws Error{internal} with the condition's text and source location.
/// Further arguments: an fmt format string and its values, for the message.
#define DTRAIN_CHECK(condition, ...)                                                      \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::dtrain::base::detail::check_failed(#condition, __FILE__, __LINE__,                \
                                           ::dtrain::base::detail::message(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)

namespace dtrain::base {

/// The kind of an error; the enumerator's value is the exit status.
enum class ErrorKind : int {
  usage = 2,        ///< command line or configuration
  data = 3,         ///< token files, text
  comm = 4,         ///< communication failed, or another rank failed
  timeout = 5,      ///< a deadline expired, or a rank hung
  checkpoint = 6,   ///< model files and checkpoints
  numerics = 7,     ///< non-finite loss or gradient; verification beyond tolerance
  memory = 8,       ///< out of memory
  interrupted = 9,  ///< stopped on request after saving
  rendezvous = 10,  ///< dtrun: not all nodes joined in time
  port = 11,        ///< dtrun: the port is in use
  spawn = 12,       ///< dtrun: the program could not be started
  device = 13,      ///< no such device, or it was lost
  internal = 70,    ///< a bug in dtrain
};

/// An error whose one-line message names the setting or file, the value found, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] int exit_status() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

/// Throws Error{kind} with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

/// The name of a kind in machine-readable output: "timeout", "usage", ...
[[nodiscard]] std::string_view name_of(ErrorKind kind) noexcept;

namespace detail {
inline std::string message() { return {}; }
template <typename... Args>
std::string message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}  // namespace detail

/// a / b; throws Error{internal} if there is a remainder.
template <typename Integer>
[[nodiscard]] Integer div_exact(Integer a, Integer b) {
  DTRAIN_CHECK(b != 0 && a % b == 0, "{} is not a multiple of {}", a, b);
  return a / b;
}

/// static_cast; throws Error{internal} if the value changes.
template <typename To, typename From>
[[nodiscard]] To narrow(From value) {
  const To result = static_cast<To>(value);
  DTRAIN_CHECK(static_cast<From>(result) == value && ((result < To{}) == (value < From{})),
               "{} does not fit", value);
  return result;
}

}  // namespace dtrain::base
