#include "dtrain/config/machine.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

namespace dtrain::config {
namespace {

constexpr double kMostBytes = 9e18;

std::optional<double> bytes_in(std::string_view unit) {
  std::string lower(unit);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower.empty() || lower == "b") return 1;
  const auto power = std::string_view("kmgt").find(lower.front());
  const bool is_decimal = lower.substr(1) == "b";
  if (power == std::string_view::npos || (!is_decimal && lower.substr(1) != "ib")) {
    return std::nullopt;
  }
  double bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) bytes *= is_decimal ? 1000 : 1024;
  return bytes;
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) return std::nullopt;
  const auto unit = bytes_in(text.substr(static_cast<std::size_t>(end - text.data())));
  if (!unit || value * *unit > kMostBytes) return std::nullopt;
  if (value > 0 && value * *unit < 1) return std::nullopt;  // less than a byte is no 0
  return static_cast<std::int64_t>(value * *unit);
}

std::optional<RecomputeSetting> parse_recompute(std::string_view text) {
  using Kind = RecomputeSetting::Kind;
  if (text == "none") return RecomputeSetting{.kind = Kind::none};
  if (text == "level") return RecomputeSetting{.kind = Kind::level};
  if (text == "auto") return RecomputeSetting{.kind = Kind::automatic};
  constexpr std::string_view kEvery = "every:";
  if (!text.starts_with(kEvery)) return std::nullopt;
  text.remove_prefix(kEvery.size());
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || size < 1) return std::nullopt;
  return RecomputeSetting{.kind = Kind::every, .group_size = size};
}

}  // namespace dtrain::config
