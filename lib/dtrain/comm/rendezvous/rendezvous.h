// Finding the other ranks through the store that rank 0 serves. Private to comm.
#pragma once

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/comm/deadline.h"

namespace dtrain::comm {

/// The store of a job, and this host's address on the network that reaches it.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  std::string own_address;
};

/// Serves the store (rank 0) or connects to it, and returns when every rank has come.
///
/// Throws: as create_world.
[[nodiscard]] Rendezvous meet_all_ranks(const WorldOptions& options, const Deadline& deadline);

/// Returns when every member has called this with the same key.
///
/// Throws: Error{timeout} naming the members that did not come, Error{comm} if the store is gone.
void meet_members(c10d::Store& store, const std::string& key, std::int64_t own_rank,
                  const std::vector<std::int64_t>& world_ranks, const Deadline& deadline);

/// The same, and what each member has to say to the others: their texts, in that order. A text must
/// not be empty.
///
/// Throws: as meet_members.
[[nodiscard]] std::vector<std::string> exchange_notes(c10d::Store& store, const std::string& key,
                                                      std::int64_t own_rank,
                                                      const std::vector<std::int64_t>& world_ranks,
                                                      const std::string& own_note,
                                                      const Deadline& deadline);

/// Fails with an error that every rank of the job finds for itself. Rank 0 goes on serving the
/// store for a moment, so that the others can.
[[noreturn]] void fail_together(std::int64_t own_rank, const base::Error& error);

}  // namespace dtrain::comm
