#include "dtrain/metrics/progress_line.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace dtrain::metrics {
namespace {

// Parts of a higher rank go before the dividers do.
constexpr int kBelowDividers = 6;

std::string joined(const std::vector<LinePart>& parts, std::string_view divider) {
  std::string line;
  for (const LinePart& part : parts) line.append(line.empty() ? "" : divider).append(part.text);
  return line;
}

// Where the second column of "mesh            pp 1" begins; 2 where a line has one.
std::size_t indent_of(std::string_view line, std::size_t room) {
  const std::size_t gap = line.find("  ");
  const std::size_t column = gap == line.npos ? line.npos : line.find_first_not_of(' ', gap);
  return column != line.npos && column < room / 2 ? column : 2;
}

std::string wrap_line(std::string_view line, std::size_t room) {
  constexpr std::size_t kNarrowest = 20;
  if (room < kNarrowest) return std::string(line);
  const std::string indent(indent_of(line, room), ' ');
  std::string wrapped;
  std::size_t used = 0;  // of the row, by its indent
  while (line.size() > room - used) {
    std::size_t space = line.rfind(' ', room - used);
    const std::size_t begin = wrapped.empty() ? indent.size() : 0;
    if (space == line.npos || space <= begin) space = line.find(' ', room - used);  // a long word
    if (space == line.npos) break;
    wrapped.append(line.substr(0, space)).append("\n").append(indent);
    line.remove_prefix(space + 1);
    used = indent.size();
  }
  return wrapped.append(line);
}

}  // namespace

std::string wrap_words(std::string_view text, std::size_t room) {
  std::string wrapped;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    wrapped.append(wrap_line(text.substr(begin, end - begin), room));
    if (end < text.size()) wrapped += '\n';
    begin = end + 1;
  }
  return wrapped;
}

namespace {

// Of parts that all have rank 0.
std::string fit_last_parts(std::vector<LinePart> parts, std::size_t room) {
  for (LinePart& part : parts) {
    if (joined(parts, " ").size() > room && !part.brief.empty()) part.text = part.brief;
  }
  while (parts.size() > 1 && joined(parts, " ").size() > room) parts.pop_back();
  return joined(parts, " ").substr(0, room);
}

}  // namespace

std::string fit_parts(std::vector<LinePart> parts, std::size_t room) {
  std::erase_if(parts, [](const LinePart& part) { return part.text.empty(); });
  for (;;) {
    const auto next =
        std::max_element(parts.begin(), parts.end(),
                         [](const LinePart& a, const LinePart& b) { return a.rank < b.rank; });
    const int rank = next == parts.end() ? 0 : next->rank;
    const std::string line = joined(parts, " | ");
    if (line.size() <= room) return line;
    if (rank < kBelowDividers) {
      const std::string narrow = joined(parts, " ");
      if (narrow.size() <= room) return narrow;
      if (rank == 0) return fit_last_parts(std::move(parts), room);
    }
    parts.erase(next);
  }
}

}  // namespace dtrain::metrics
