#include "dtrain/base/text/text.h"

#include <fmt/ranges.h>

#include <algorithm>
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

std::string list_text(const std::vector<std::string>& parts, std::string_view separator) {
  constexpr std::size_t kShown = 20;
  const auto end = parts.begin() + static_cast<std::ptrdiff_t>(std::min(parts.size(), kShown));
  std::string text = fmt::format("{}", fmt::join(parts.begin(), end, separator));
  if (parts.size() > kShown) text += fmt::format("{}and {} more", separator, parts.size() - kShown);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string result;
  int continued = 0;  // bytes that the character under way still has in UTF-8
  for (std::size_t at = 0; at < text.size() && result.size() < max_bytes; ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto next = at + 1 < text.size() ? static_cast<unsigned char>(text[at + 1]) : 0U;
    const bool is_continuation = continued > 0 && (byte & 0xC0) == 0x80;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      result += '?';
      ++at;
      continued = 0;
      continue;
    }
    const bool is_control = byte < 0x20 || byte == 0x7F || (byte >= 0x80 && byte < 0xA0);
    result += is_control && !is_continuation ? '?' : text[at];
    if (is_continuation) {
      --continued;
    } else {
      continued = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
    }
  }
  return result;
}

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c >= ' ' && c <= '~' ? c : '?';
  }
  return quoted + "\"";
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view kSpecial = " '\"\\$&|;<>*?(){}[]#~`!\t\r\n";
  if (!word.empty() && word.find_first_of(kSpecial) == word.npos) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace dtrain::base
