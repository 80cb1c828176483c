#include "dtrain/data/source/wikitext.h"

namespace dtrain::data {
namespace {

constexpr std::string_view kBeginsTitle = "\n = ";
constexpr std::string_view kBeginsSection = "\n = =";
constexpr std::string_view kEndsTitle = " = \n";

std::string_view line_at(std::string_view text, std::size_t at) {
  const std::size_t end = text.find('\n', at);
  return text.substr(at, end == text.npos ? text.npos : end + 1 - at);
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \r\n") == line.npos; }

/// The line that ends before `at`.
std::string_view line_before(std::string_view text, std::size_t at) {
  const std::size_t end = at - 1;
  const std::size_t newline = end == 0 ? text.npos : text.rfind('\n', end - 1);
  const std::size_t begin = newline == text.npos ? 0 : newline + 1;
  return text.substr(begin, end - begin);
}

/// line_begin: of " = Title = \n".
bool is_title(std::string_view text, std::size_t line_begin) {
  const std::string_view line = line_at(text, line_begin);
  if (!line.starts_with(kBeginsTitle.substr(1)) || line.starts_with(kBeginsSection.substr(1)) ||
      !line.ends_with(kEndsTitle)) {
    return false;
  }
  const std::size_t after = line_begin + line.size();
  return after < text.size() && is_blank(line_at(text, after)) &&
         (line_begin == 0 || is_blank(line_before(text, line_begin)));
}

}  // namespace

bool begins_article(std::string_view text, std::size_t at) {
  return at < text.size() && (at == 0 || text[at - 1] == '\n') && is_title(text, at);
}

std::size_t next_article(std::string_view text) {
  for (auto at = text.find(kBeginsTitle); at != text.npos; at = text.find(kBeginsTitle, at + 1)) {
    if (is_title(text, at + 1) && !is_blank(text.substr(0, at))) return at + 1;
  }
  return text.size();
}

std::size_t last_article(std::string_view text) {
  for (auto at = text.rfind(kBeginsTitle); at != text.npos; at = text.rfind(kBeginsTitle, at - 1)) {
    if (is_title(text, at + 1)) return is_blank(text.substr(0, at)) ? 0 : at + 1;
    if (at == 0) break;
  }
  return 0;
}

std::size_t count_words(std::string_view text) {
  std::size_t words = 0;
  bool is_within = false;
  for (const char c : text) {
    const bool is_space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (c == '\n' || (!is_space && !is_within)) ++words;
    is_within = !is_space;
  }
  return words;
}

}  // namespace dtrain::data
