#include "dtrain/config/foreign_format.h"

#include <algorithm>
#include <array>

namespace dtrain::config {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// The first line that is neither blank nor a comment, without blanks around it.
std::string_view first_line(std::string_view text) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    if (!line.empty() && line.front() != '#') return line;
  }
  return {};
}

// The sign after a bare name at the line's beginning: ':' in "steps: 5", '=' in "steps = 5".
char sign_after_name(std::string_view line) {
  const auto end = std::ranges::find_if(line, [](char c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    return !is_letter && !(c >= '0' && c <= '9') && c != '.' && c != '-';
  });
  std::string_view rest(end, line.end());
  if (end == line.begin()) return 0;
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  return rest.empty() ? char{0} : rest.front();
}

}  // namespace

std::string_view foreign_format(const std::string& path, std::string_view text) {
  struct Ending {
    std::string_view ending;
    std::string_view format;
  };
  constexpr std::array<Ending, 6> kEndings = {{{".yaml", "YAML"},
                                               {".yml", "YAML"},
                                               {".toml", "TOML"},
                                               {".py", "Python"},
                                               {".ini", "an INI file"},
                                               {".safetensors", "a model"}}};
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16 text";
  if (text.find('\0') != text.npos) return "binary, or UTF-16 text";
  for (const Ending& ending : kEndings) {
    if (path.ends_with(ending.ending)) return ending.format;
  }
  const std::string_view line = first_line(text);
  if (line.starts_with("---")) return "YAML";
  if (line.starts_with('[') && line.ends_with(']') && line.find_first_of("\",") == line.npos) {
    return "TOML";
  }
  switch (sign_after_name(line)) {
    case ':':
      return "YAML";
    case '=':
      return "TOML or Python";
    default:
      return {};
  }
}

}  // namespace dtrain::config
