#include "dtrain/comm/internal/rendezvous/job_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace dtrain::comm {

using base::ErrorKind;

namespace {

// Ranks may be wrong, but rank 0's memory is not theirs.
constexpr std::size_t kMostGatheredBytes = std::size_t{256} << 20;

}  // namespace

Gathering::Gathering(std::vector<std::int64_t> members)
    : members_(std::move(members)), notes_(members_.size()) {}

bool Gathering::join(std::int64_t rank, std::string note) {
  const auto own = std::find(members_.begin(), members_.end(), rank);
  if (own == members_.end()) return false;
  std::optional<std::string>& place = notes_[static_cast<std::size_t>(own - members_.begin())];
  if (place) return false;
  place = std::move(note);
  if (++come_ == members_.size()) packed_ = packed(attendance());
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

JobStore::JobStore(std::int64_t size) : size_(size) {
  for (std::int64_t rank = 0; rank < size; ++rank) {
    missing_.insert(missing_.end(), static_cast<std::uint64_t>(rank));
  }
}

void JobStore::admit(std::uint64_t rank, std::uint64_t size) {
  if (size != static_cast<std::uint64_t>(size_)) {
    return refuse(ErrorKind::usage,
                  fmt::format("rank {} was started with a world size of {}, rank 0 with {}; give "
                              "every rank the same WORLD_SIZE",
                              rank, size, size_));
  }
  if (rank >= size) {
    return refuse(ErrorKind::usage,
                  fmt::format("a process was started as rank {} of {}; give each its own RANK, "
                              "from 0",
                              rank, size));
  }
  if (missing_.erase(rank) == 0) {
    refuse(ErrorKind::usage,
           fmt::format("two processes were started as rank {} of {}; give each its own RANK", rank,
                       size));
  }
}

std::string JobStore::describe_missing() const {
  constexpr std::size_t kMostNamed = 10;
  const std::size_t named = std::min(missing_.size(), kMostNamed);
  const auto end = std::next(missing_.begin(), static_cast<std::ptrdiff_t>(named));
  const std::size_t others = missing_.size() - named;
  return fmt::format("rank{} {}{} of {}", missing_.size() == 1 ? "" : "s",
                     fmt::join(missing_.begin(), end, ", "),
                     others > 0 ? fmt::format(" and {} more", others) : "", size_);
}

void JobStore::join(const std::string& key, const std::vector<std::int64_t>& members,
                    std::int64_t rank, std::string note) {
  gathered_bytes_ += note.size();
  if (!gatherings_.contains(key)) {
    gathered_bytes_ += key.size() + members.size() * sizeof(members.front());
  }
  if (gathered_bytes_ > kMostGatheredBytes) {
    return refuse(ErrorKind::comm,
                  fmt::format("the job's store is full: notes and members of groups with {} bytes, "
                              "where {} are allowed",
                              gathered_bytes_, kMostGatheredBytes));
  }
  Gathering& gathering = gatherings_.try_emplace(key, members).first->second;
  if (gathering.members() != members || !gathering.join(rank, std::move(note))) {
    refuse(ErrorKind::comm,
           fmt::format("rank {} came to {} as nobody whom its other members expect", rank, key));
  }
  if (gathering.notes() != nullptr) ++news_;
}

const std::string* JobStore::notes(const std::string& key) const {
  const auto found = gatherings_.find(key);
  return found == gatherings_.end() ? nullptr : found->second.notes();
}

std::string JobStore::missing(const std::string& key) const {
  return packed(gatherings_.at(key).attendance());
}

void JobStore::refuse(ErrorKind kind, std::string message) {
  if (!refusal_) refusal_ = Refusal{kind, std::move(message)};
  ++news_;
}

}  // namespace dtrain::comm
