// Parses numbers, sizes and durations. Units are case-insensitive, and may be separated from the
// number by spaces.
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

/// Parses the whole text as a number; empty if it is anything else.
template <typename Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fills_text = error == std::errc() && end == text.data() + text.size();
  return fills_text ? std::optional(value) : std::nullopt;
}

/// Converts a whole number; empty if it is fractional, beyond 2^53 or out of range for `Number`.
template <std::integral Number>
[[nodiscard]] std::optional<Number> as_whole_number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: above it doubles skip whole numbers
  if (std::trunc(value) != value || std::abs(value) > kExact) return std::nullopt;
  const auto whole = static_cast<std::int64_t>(value);
  return std::in_range<Number>(whole) ? std::optional(static_cast<Number>(whole)) : std::nullopt;
}

/// Parses a whole number in any notation: "10000", "1e4", "1.5e3", "8.0"; empty for "1.5". Beyond
/// 2^53 only plain digits are accepted.
template <std::integral Number>
[[nodiscard]] std::optional<Number> whole_number_in(std::string_view text) {
  if (const auto digits = number_in<Number>(text)) return digits;
  const auto value = number_in<double>(text);
  return value ? as_whole_number<Number>(*value) : std::nullopt;
}

/// Bytes of "4G", "4Gi", "4GiB" (powers of 1024), "4GB" (powers of 1000), "1.5g", "4096" or "4e9";
/// units are K, M, G and T. Empty for any other text, and for values between 0 and 1.
[[nodiscard]] std::optional<std::int64_t> bytes_in(std::string_view text);

/// Removes a "/s" suffix, as in "25GB/s".
[[nodiscard]] std::string_view without_per_second(std::string_view text);

/// Seconds of a duration: "90", "90s", "10min", "2h30m", "1d", or one of SLURM's forms that have a
/// colon or a dash: "1:50" (minutes and seconds), "1:50:00", "1-02", "1-02:00", "1-02:00:00"
/// (days first). Empty for any other text.
[[nodiscard]] std::optional<double> seconds_in(std::string_view text);

/// Describes the forms that seconds_in accepts, for messages and help.
inline constexpr std::string_view kDurationForms =
    "a duration: 90s, 10m, 1h30m, 1:30:00 or 1-12:00:00, or seconds";

}  // namespace dtrain::base
