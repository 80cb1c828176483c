#include "dtrain/base/readable.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace dtrain::base {
namespace {

// "3 min 20 s", and "3 min" where there is no rest.
std::string two_units(std::int64_t number, const char* unit, std::int64_t rest, const char* small) {
  return rest == 0 ? fmt::format("{} {}", number, unit)
                   : fmt::format("{} {} {} {}", number, unit, rest, small);
}

}  // namespace

std::string readable_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string readable_time(double seconds) {
  constexpr double kMilliseconds = 1e3;
  if (!(seconds > 0)) return "0 s";
  if (seconds < 0.0995) return fmt::format("{:.0f} ms", std::ceil(seconds * kMilliseconds));
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto total = static_cast<std::int64_t>(std::llround(std::fmin(seconds, 1e15)));
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return two_units(total / 60, "min", total % 60, "s");
  if (total < 86'400) return two_units(total / 3600, "h", total / 60 % 60, "min");
  return two_units(total / 86'400, "d", total / 3600 % 24, "h");
}

}  // namespace dtrain::base
