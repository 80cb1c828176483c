#include "dtrain/comm/rendezvous/rank_runs.h"

#include <cstddef>

namespace dtrain::comm {

void write_ranks(net::MessageWriter& writer, const std::vector<std::int64_t>& ranks) {
  for (std::size_t first = 0; first < ranks.size();) {
    const std::int64_t step = first + 1 < ranks.size() ? ranks[first + 1] - ranks[first] : 0;
    std::size_t end = first + 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == step) ++end;
    writer.number(static_cast<std::uint64_t>(ranks[first]))
        .number(static_cast<std::uint64_t>(step))
        .number(end - first);
    first = end;
  }
}

std::optional<std::vector<std::int64_t>> read_ranks(net::MessageReader& reader, std::int64_t most) {
  std::vector<std::int64_t> ranks;
  while (reader.is_good() && !reader.is_whole()) {
    std::uint64_t rank = reader.number();
    const std::uint64_t step = reader.number();
    const std::uint64_t count = reader.number();
    if (count > static_cast<std::uint64_t>(most) - ranks.size()) return std::nullopt;
    for (std::uint64_t index = 0; index < count; ++index, rank += step) {
      ranks.push_back(static_cast<std::int64_t>(rank));
    }
  }
  if (!reader.is_whole()) return std::nullopt;
  return ranks;
}

}  // namespace dtrain::comm
