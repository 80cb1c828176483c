#include "dtrain/metrics/progress_line.h"

#include <algorithm>
#include <string_view>

namespace dtrain::metrics {
namespace {

// Parts of a higher rank go before the dividers do.
constexpr int kBelowDividers = 5;

std::string joined(const std::vector<LinePart>& parts, std::string_view divider) {
  std::string line;
  for (const LinePart& part : parts) line.append(line.empty() ? "" : divider).append(part.text);
  return line;
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
      if (narrow.size() <= room || rank == 0) return narrow.substr(0, room);
    }
    parts.erase(next);
  }
}

}  // namespace dtrain::metrics
