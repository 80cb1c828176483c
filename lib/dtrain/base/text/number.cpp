#include "dtrain/base/text/number.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

namespace dtrain::base {
namespace {

constexpr double kMaxBytes = 9e18;
constexpr double kLongest = 1e9;  // seconds: what a clock can count

void skip_spaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
}

// Splits off a leading number without sign or exponent.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value) || std::signbit(value)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// Splits off leading letters, in lower case.
std::string take_unit(std::string_view& text) {
  skip_spaces(text);
  std::string unit;
  while (!text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(text.front())));
    text.remove_prefix(1);
  }
  skip_spaces(text);
  return unit;
}

std::optional<double> bytes_of_unit(std::string_view unit) {
  if (unit == "b") return 1;
  const auto power = unit.empty() ? unit.npos : std::string_view("kmgt").find(unit.front());
  if (power == unit.npos) return std::nullopt;
  const std::string_view rest = unit.substr(1);
  if (rest == "b") return std::pow(1000.0, power + 1);
  if (!rest.empty() && rest != "i" && rest != "ib") return std::nullopt;
  return std::pow(1024.0, power + 1);
}

std::optional<double> seconds_of_unit(std::string_view unit) {
  struct Unit {
    double seconds;
    std::array<std::string_view, 5> names;
  };
  static constexpr Unit kUnits[] = {{1e-3, {"ms"}},
                                    {1, {"s", "sec", "secs", "second", "seconds"}},
                                    {60, {"m", "min", "mins", "minute", "minutes"}},
                                    {3600, {"h", "hr", "hrs", "hour", "hours"}},
                                    {86'400, {"d", "day", "days"}}};
  for (const Unit& known : kUnits) {
    if (!unit.empty() && std::ranges::find(known.names, unit) != known.names.end()) {
      return known.seconds;
    }
  }
  return std::nullopt;
}

// "2h30m": every number has its unit.
std::optional<double> seconds_with_units(std::string_view text) {
  double total = 0;
  do {
    const auto value = take_number(text);
    const auto unit = value ? seconds_of_unit(take_unit(text)) : std::nullopt;
    if (!unit) return std::nullopt;
    total += *value * *unit;
  } while (!text.empty());
  return total;
}

// Parses digits; a field that is not the first has at most two and is below `limit`.
std::optional<double> clock_field(std::string_view text, bool is_first, double limit) {
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  const auto value = number_in<double>(text);
  if (!value || (!is_first && (text.size() > 2 || *value >= limit))) return std::nullopt;
  return value;
}

// "1:50", "1:50:00", "1-02", "1-02:00", "1-02:00:00". After a number of days hours come first,
// without one the last field is seconds.
std::optional<double> seconds_on_clock(std::string_view text) {
  constexpr double kOfField[] = {86'400, 3600, 60, 1};
  constexpr double kLimits[] = {0, 24, 60, 60};
  const auto dash = text.find('-');
  const auto num_colons = static_cast<std::size_t>(std::ranges::count(text, ':'));
  if (num_colons > 2) return std::nullopt;
  std::size_t field = dash == text.npos ? 3 - num_colons : 0;
  double total = 0;
  for (bool is_first = true;; is_first = false, ++field) {
    const std::size_t end = std::min(field == 0 ? dash : text.find(':'), text.size());
    const auto value = clock_field(text.substr(0, end), is_first, kLimits[field]);
    if (!value) return std::nullopt;
    total += *value * kOfField[field];
    if (end == text.size()) return total;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::optional<std::int64_t> bytes_in(std::string_view text) {
  if (const auto bytes = whole_number_in<std::int64_t>(text)) {
    return *bytes < 0 ? std::nullopt : bytes;
  }
  const auto value = take_number(text);
  const auto unit = value ? bytes_of_unit(take_unit(text)) : std::nullopt;
  if (!unit || !text.empty() || *value * *unit > kMaxBytes) return std::nullopt;
  if (*value > 0 && *value * *unit < 1) return std::nullopt;
  return static_cast<std::int64_t>(*value * *unit);
}

std::string_view without_per_second(std::string_view text) {
  constexpr std::string_view kPerSecond = "/s";
  if (text.ends_with(kPerSecond)) text.remove_suffix(kPerSecond.size());
  return text;
}

std::optional<double> seconds_in(std::string_view text) {
  std::optional<double> seconds;
  if (std::string_view rest = text; (seconds = take_number(rest)) && !rest.empty()) {
    seconds =
        text.find_first_of(":-") != text.npos ? seconds_on_clock(text) : seconds_with_units(text);
  }
  return seconds && *seconds <= kLongest ? seconds : std::nullopt;
}

}  // namespace dtrain::base
