// Reads numbers.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

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
  const bool is_whole = std::trunc(value) == value && std::abs(value) <= kExact;
  if (!is_whole || (std::unsigned_integral<Number> && value < 0)) return std::nullopt;
  return static_cast<Number>(value);
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
