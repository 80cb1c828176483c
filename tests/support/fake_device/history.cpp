#include "support/fake_device/history.h"

#include <algorithm>
#include <utility>

namespace dtrain::testing::fake {

History::History(std::size_t bytes, const Epoch& birth) {
  cells_.emplace(0, Cell{.end = bytes, .write = birth, .reads = {}});
}

void History::split(std::size_t at) {
  const auto next = cells_.upper_bound(at);
  if (next == cells_.begin()) return;
  const auto cell = std::prev(next);
  if (cell->first == at || cell->second.end <= at) return;
  Cell tail = cell->second;
  cell->second.end = at;
  cells_.emplace_hint(next, at, std::move(tail));
}

std::optional<Conflict> History::conflict(const Cells::value_type& entry, const Clock& known,
                                          bool is_write) {
  const auto& [begin, cell] = entry;
  const Range range{begin, cell.end};
  if (!cell.write.is_before(known)) return Conflict{range, cell.write, true};
  if (!is_write) return std::nullopt;
  for (const Epoch& read : cell.reads) {
    if (!read.is_before(known)) return Conflict{range, read, false};
  }
  return std::nullopt;
}

std::optional<Conflict> History::add(std::span<const Range> ranges, const Use& use,
                                     const Clock& known) {
  std::optional<Conflict> first;
  for (const auto& [begin, end] : ranges) {
    split(begin);
    split(end);
    const auto from = cells_.lower_bound(begin);
    const auto to = cells_.lower_bound(end);
    for (auto cell = from; cell != to; ++cell) {
      if (!first) first = conflict(*cell, known, use.is_write);
      if (use.is_write) continue;
      std::vector<Epoch>& reads = cell->second.reads;
      std::erase_if(reads, [&](const Epoch& e) { return e.stream == use.kernel.stream; });
      reads.push_back(use.kernel);
    }
    if (use.is_write) {  // one history from now on
      cells_.erase(from, to);
      cells_.emplace(begin, Cell{.end = end, .write = use.kernel, .reads = {}});
    }
  }
  return first;
}

std::optional<Conflict> History::unordered(const Clock& known,
                                           std::span<const StreamNumber> excused) const {
  const auto is_open = [&](const Epoch& use) {
    return !use.is_before(known) && std::ranges::find(excused, use.stream) == excused.end();
  };
  for (const auto& [begin, cell] : cells_) {
    if (is_open(cell.write)) return Conflict{{begin, cell.end}, cell.write, true};
    const auto read = std::ranges::find_if(cell.reads, is_open);
    if (read != cell.reads.end()) return Conflict{{begin, cell.end}, *read, false};
  }
  return std::nullopt;
}

}  // namespace dtrain::testing::fake
