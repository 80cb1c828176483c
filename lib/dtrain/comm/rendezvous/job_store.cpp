#include "dtrain/comm/rendezvous/job_store.h"

#include <fmt/format.h>

#include <utility>

namespace dtrain::comm {

using base::ErrorKind;

ErrorKind kind_of_refusal(std::uint64_t number) {
  const auto kind = static_cast<ErrorKind>(number);
  const bool is_known = number <= 70 && base::name_of(kind) != base::name_of(ErrorKind::internal);
  return is_known && kind != ErrorKind::interrupted ? kind : ErrorKind::comm;
}

std::string member_key(const std::string& key, std::int64_t rank) {
  return fmt::format("{}/{}", key, rank);
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
  if (!arrived_.insert(rank).second) {
    return refuse(ErrorKind::usage,
                  fmt::format("two processes were started as rank {} of {}; give each its own RANK",
                              rank, size));
  }
  set(member_key(kJobKey, static_cast<std::int64_t>(rank)), "here");
}

void JobStore::set(const std::string& key, std::string value) {
  const std::string problem = values_.set(key, std::move(value));
  if (!problem.empty()) refuse(ErrorKind::comm, "the job's store is full: " + problem);
}

void JobStore::refuse(ErrorKind kind, std::string message) {
  if (!refusal_) refusal_ = Refusal{kind, std::move(message)};
}

}  // namespace dtrain::comm
