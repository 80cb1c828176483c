#include "dtrain/comm/internal/rendezvous/wire.h"

#include <algorithm>
#include <cstddef>

namespace dtrain::comm {

namespace {

constexpr std::size_t kMostMembers = std::size_t{1} << 20;  // of a meeting that a store tells of

}  // namespace

base::ErrorKind kind_of_refusal(std::uint64_t number) {
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

std::string packed(const Attendance& attendance) {
  net::MessageWriter writer;
  writer.number(attendance.missing.size());
  for (const std::int64_t rank : attendance.missing) {
    writer.number(static_cast<std::uint64_t>(rank));
  }
  const auto& notes = attendance.notes;
  for (auto first = notes.begin(); first != notes.end();) {
    const auto end =
        std::find_if(first, notes.end(), [&](const auto& each) { return each != *first; });
    writer.small_number(static_cast<std::uint64_t>(end - first)).short_text(*first);
    first = end;
  }
  return writer.bytes();
}

std::optional<Attendance> unpacked_attendance(std::string_view text) {
  net::MessageReader reader(text);
  Attendance result;
  for (std::uint64_t left = reader.number(); left > 0 && reader.is_good(); --left) {
    result.missing.push_back(static_cast<std::int64_t>(reader.number()));
  }
  while (reader.is_good() && !reader.is_whole()) {
    const std::uint64_t count = reader.small_number();
    if (count > kMostMembers - result.notes.size()) return std::nullopt;
    result.notes.resize(result.notes.size() + count, reader.short_text());
  }
  if (!reader.is_whole()) return std::nullopt;
  return result;
}

}  // namespace dtrain::comm
