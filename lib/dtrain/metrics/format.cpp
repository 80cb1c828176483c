#include "dtrain/metrics/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dtrain/base/text/text.h"

namespace dtrain::metrics {

std::string format_bytes(std::int64_t bytes) { return base::readable_bytes(bytes); }

std::string format_count(std::int64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_number(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  const std::int64_t hours = total / 3600;
  const std::int64_t minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

std::string format_rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f}M", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f}k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
}

std::string format_step_time(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string readable_text(std::string_view text) {
  using Json = nlohmann::json;
  const std::string as_json =
      Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  const auto valid = Json::parse(as_json).get<std::string>();
  std::string readable;
  for (std::size_t begin = 0; begin <= valid.size();) {
    const std::size_t end = std::min(valid.find('\n', begin), valid.size());
    if (begin > 0) readable += '\n';
    readable += base::printable(std::string_view(valid).substr(begin, end - begin), valid.size());
    begin = end + 1;
  }
  return readable;
}

}  // namespace dtrain::metrics
