// Checks for programmers: a failing one is a defect of dtrain, not of its input.
#pragma once

#include "dtrain/base/error.h"

/// Throws Error{internal} naming the condition and place unless `condition` holds; further
/// arguments are a fmt format and its values.
#define DTRAIN_CHECK(condition, ...)                                                      \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::dtrain::base::detail::check_failed(#condition, __FILE__, __LINE__,                \
                                           ::dtrain::base::detail::message(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)

namespace dtrain::base {

namespace detail {
inline std::string message() { return {}; }
template <typename... Args>
std::string message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}  // namespace detail

/// a / b, refusing a remainder: a silent rounding of sizes is a defect.
template <typename Integer>
[[nodiscard]] Integer div_exact(Integer a, Integer b) {
  DTRAIN_CHECK(b != 0 && a % b == 0, "{} is not a multiple of {}", a, b);
  return a / b;
}

/// static_cast that refuses to change the value.
template <typename To, typename From>
[[nodiscard]] To narrow(From value) {
  const To result = static_cast<To>(value);
  DTRAIN_CHECK(static_cast<From>(result) == value && ((result < To{}) == (value < From{})),
               "{} does not fit", value);
  return result;
}

}  // namespace dtrain::base
