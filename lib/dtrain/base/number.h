// Reads numbers.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace dtrain::base {

/// The number that fills the text; nothing where it is none, or has more around it.
template <typename Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fills_text = error == std::errc() && end == text.data() + text.size();
  return fills_text ? std::optional(value) : std::nullopt;
}

/// `value` if it is a whole number that doubles hold exactly and `Number` can have.
template <std::integral Number>
[[nodiscard]] std::optional<Number> as_whole_number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: above it doubles skip whole numbers
  if (std::trunc(value) != value || std::abs(value) > kExact) return std::nullopt;
  const auto whole = static_cast<std::int64_t>(value);
  return std::in_range<Number>(whole) ? std::optional(static_cast<Number>(whole)) : std::nullopt;
}

/// The whole number that the text has in any notation: "10000", "1e4", "1.5e3", "8.0"; nothing for
/// "1.5". Beyond 2^53 only digits tell it.
template <std::integral Number>
[[nodiscard]] std::optional<Number> whole_number_in(std::string_view text) {
  if (const auto digits = number_in<Number>(text)) return digits;
  const auto value = number_in<double>(text);
  return value ? as_whole_number<Number>(*value) : std::nullopt;
}

}  // namespace dtrain::base
