#include "dtrain/comm/rendezvous/gathering.h"

#include <algorithm>
#include <utility>

#include "dtrain/net/message.h"

namespace dtrain::comm {

namespace {

constexpr std::size_t kMostMembers = std::size_t{1} << 20;  // of a meeting that a store tells of

}  // namespace

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

Gathering::Gathering(std::vector<std::int64_t> members)
    : members_(std::move(members)), notes_(members_.size()) {}

bool Gathering::join(std::int64_t rank, std::string note) {
  const auto own = std::find(members_.begin(), members_.end(), rank);
  if (own == members_.end()) return false;
  std::optional<std::string>& place = notes_[static_cast<std::size_t>(own - members_.begin())];
  if (place) return false;
  place = std::move(note);
  is_complete_ = ++come_ == members_.size();
  if (is_complete_) packed_ = packed(attendance());
  return true;
}

Attendance Gathering::attendance() const {
  Attendance result;
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (!notes_[index]) result.missing.push_back(members_[index]);
  }
  if (!result.missing.empty()) return result;
  for (const auto& note : notes_) result.notes.push_back(*note);
  return result;
}

}  // namespace dtrain::comm
