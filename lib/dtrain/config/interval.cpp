#include "dtrain/config/interval.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace dtrain::config {
namespace {

constexpr double kLongest = 1e9;  // seconds: what a clock can count
constexpr std::int64_t kMostSequences = std::int64_t{1} << 31;

std::optional<std::int64_t> parse_whole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> seconds_in(char unit) {
  switch (unit) {
    case 's':
      return 1;
    case 'm':
      return 60;
    case 'h':
      return 3600;
    case 'd':
      return 86400;
    default:
      return std::nullopt;
  }
}

// Takes a number off the front of `text`.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

std::optional<double> parse_duration(std::string_view text) {
  double total = 0;
  bool has_unit = false;
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    const auto value = take_number(text);
    if (!value) return std::nullopt;
    if (text.empty() && !has_unit) return *value <= kLongest ? value : std::nullopt;
    const auto unit = text.empty() ? std::nullopt : seconds_in(text.front());
    if (!unit) return std::nullopt;
    text.remove_prefix(1);
    has_unit = true;
    total += *value * *unit;
  }
  return total <= kLongest ? std::optional(total) : std::nullopt;
}

std::optional<Interval> parse_interval(std::string_view text) {
  if (text == "none") return Interval{.at_the_end = false};
  if (const auto steps = parse_whole(text)) {
    return *steps >= 0 ? std::optional(Interval{.steps = *steps}) : std::nullopt;
  }
  const bool has_unit = text.find_first_of("smhd") != std::string_view::npos;
  const auto seconds = has_unit ? parse_duration(text) : std::nullopt;
  return seconds ? std::optional(Interval{.seconds = *seconds}) : std::nullopt;
}

std::optional<std::int64_t> parse_sequences(std::string_view text) {
  if (text == "all") return std::numeric_limits<std::int64_t>::max();
  const auto count = parse_whole(text);
  return count && *count >= 1 && *count <= kMostSequences ? count : std::nullopt;
}

}  // namespace dtrain::config
