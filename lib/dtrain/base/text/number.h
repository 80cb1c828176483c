// Reads numbers, sizes and durations. Units are read in any case, and spaces may stand between a
// number and its unit.
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

/// Bytes of "4G", "4Gi", "4GiB" (powers of 1024), "4GB" (powers of 1000), "1.5g", "4096" or "4e9";
/// units are K, M, G and T. Empty for any other text, and for less than a byte that is not 0.
[[nodiscard]] std::optional<std::int64_t> bytes_in(std::string_view text);

/// The text without a "/s" at its end, which a rate may have: "25GB/s".
[[nodiscard]] std::string_view without_per_second(std::string_view text);

/// Seconds of a duration: "90", "90s", "10min", "2h30m", "1d", or one of SLURM's forms that have a
/// colon or a dash: "1:50" (minutes and seconds), "1:50:00", "1-02", "1-02:00", "1-02:00:00"
/// (days first). Empty for any other text.
[[nodiscard]] std::optional<double> seconds_in(std::string_view text);

/// How messages and help describe what seconds_in reads.
inline constexpr std::string_view kDurationForms =
    "a duration: 90s, 10m, 1h30m, 1:30:00 or 1-12:00:00, or seconds";

}  // namespace dtrain::base
