#include "dtrain/comm/internal/rendezvous/job_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace dtrain::comm {

using base::ErrorKind;

namespace {

// Bounds rank 0's memory against faulty ranks.
constexpr std::size_t kMaxStoredBytes = std::size_t{256} << 20;

}  // namespace

PendingGather::PendingGather(std::vector<std::int64_t> members)
    : members_(std::move(members)), values_(members_.size()) {}

bool PendingGather::join(std::int64_t rank, std::string value) {
  const auto own = std::find(members_.begin(), members_.end(), rank);
  if (own == members_.end()) return false;
  std::optional<std::string>& place = values_[static_cast<std::size_t>(own - members_.begin())];
  if (place) return false;
  place = std::move(value);
  if (++num_joined_ == members_.size()) packed_ = packed(result());
  return true;
}

GatherResult PendingGather::result() const {
  GatherResult result;
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (!values_[index]) result.missing.push_back(members_[index]);
  }
  if (!result.missing.empty()) return result;
  for (const auto& value : values_) result.values.push_back(*value);
  return result;
}

JobStore::JobStore(std::int64_t size) : size_(size) {
  for (std::int64_t rank = 0; rank < size; ++rank) {
    missing_.insert(missing_.end(), static_cast<std::uint64_t>(rank));
  }
}

void JobStore::admit(std::uint64_t rank, std::uint64_t size) {
  if (size != static_cast<std::uint64_t>(size_)) {
    return fail_job(ErrorKind::usage,
                    fmt::format("rank {} was started with a world size of {}, rank 0 with {}; give "
                                "every rank the same WORLD_SIZE",
                                rank, size, size_));
  }
  if (rank >= size) {
    return fail_job(ErrorKind::usage, fmt::format("a process was started as rank {} of {}; give "
                                                  "each process its own RANK, counting from 0",
                                                  rank, size));
  }
  if (missing_.erase(rank) == 0) {
    fail_job(ErrorKind::usage,
             fmt::format("two processes were started as rank {} of {}; give each its own RANK",
                         rank, size));
  }
}

std::string JobStore::describe_missing() const {
  constexpr std::size_t kMaxNamed = 10;
  const std::size_t named = std::min(missing_.size(), kMaxNamed);
  const auto end = std::next(missing_.begin(), static_cast<std::ptrdiff_t>(named));
  const std::size_t others = missing_.size() - named;
  return fmt::format("rank{} {}{} of {}", missing_.size() == 1 ? "" : "s",
                     fmt::join(missing_.begin(), end, ", "),
                     others > 0 ? fmt::format(" and {} more", others) : "", size_);
}

void JobStore::join_gather(const std::string& key, const std::vector<std::int64_t>& members,
                           std::int64_t rank, std::string value) {
  stored_bytes_ += value.size();
  if (!gathers_.contains(key)) {
    stored_bytes_ += key.size() + members.size() * sizeof(members.front());
  }
  if (stored_bytes_ > kMaxStoredBytes) {
    return fail_job(ErrorKind::comm,
                    fmt::format("the rendezvous store is full: {} bytes of values and members, the "
                                "limit is {}",
                                stored_bytes_, kMaxStoredBytes));
  }
  PendingGather& gather = gathers_.try_emplace(key, members).first->second;
  if (gather.members() != members || !gather.join(rank, std::move(value))) {
    fail_job(ErrorKind::comm,
             fmt::format("rank {} joined {}, but the other members do not list it", rank, key));
  }
  if (gather.values() != nullptr) ++version_;
}

const std::string* JobStore::values(const std::string& key) const {
  const auto found = gathers_.find(key);
  return found == gathers_.end() ? nullptr : found->second.values();
}

std::string JobStore::missing(const std::string& key) const {
  return packed(gathers_.at(key).result());
}

void JobStore::fail_job(ErrorKind kind, std::string message) {
  if (!failure_) failure_ = JobFailure{kind, std::move(message)};
  ++version_;
}

}  // namespace dtrain::comm
