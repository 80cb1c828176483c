#include "dtrain/comm/internal/rendezvous/wire.h"

#include <algorithm>
#include <cstddef>

namespace dtrain::comm {

namespace {

constexpr std::size_t kMaxMembers = std::size_t{1} << 20;  // of a gather

}  // namespace

base::ErrorKind failure_kind(std::uint64_t number) {
  const auto kind = static_cast<base::ErrorKind>(number);
  const bool is_known =
      number <= 70 && base::name_of(kind) != base::name_of(base::ErrorKind::internal);
  return is_known && kind != base::ErrorKind::interrupted ? kind : base::ErrorKind::comm;
}

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

std::optional<std::vector<std::int64_t>> read_ranks(net::MessageReader& reader,
                                                    std::int64_t max_ranks) {
  std::vector<std::int64_t> ranks;
  while (reader.is_good() && !reader.is_whole()) {
    std::uint64_t rank = reader.number();
    const std::uint64_t step = reader.number();
    const std::uint64_t count = reader.number();
    if (count > static_cast<std::uint64_t>(max_ranks) - ranks.size()) return std::nullopt;
    for (std::uint64_t index = 0; index < count; ++index, rank += step) {
      ranks.push_back(static_cast<std::int64_t>(rank));
    }
  }
  if (!reader.is_whole()) return std::nullopt;
  return ranks;
}

std::string packed(const GatherResult& result) {
  net::MessageWriter writer;
  writer.number(result.missing.size());
  for (const std::int64_t rank : result.missing) {
    writer.number(static_cast<std::uint64_t>(rank));
  }
  const auto& values = result.values;
  for (auto first = values.begin(); first != values.end();) {
    const auto end =
        std::find_if(first, values.end(), [&](const auto& each) { return each != *first; });
    writer.small_number(static_cast<std::uint64_t>(end - first)).short_text(*first);
    first = end;
  }
  return writer.bytes();
}

std::optional<GatherResult> unpacked_result(std::string_view text) {
  net::MessageReader reader(text);
  GatherResult result;
  for (std::uint64_t left = reader.number(); left > 0 && reader.is_good(); --left) {
    result.missing.push_back(static_cast<std::int64_t>(reader.number()));
  }
  while (reader.is_good() && !reader.is_whole()) {
    const std::uint64_t count = reader.small_number();
    if (count > kMaxMembers - result.values.size()) return std::nullopt;
    result.values.resize(result.values.size() + count, reader.short_text());
  }
  if (!reader.is_whole()) return std::nullopt;
  return result;
}

}  // namespace dtrain::comm
