// Serves the rendezvous store on rank 0, connects every rank to it, and exchanges their addresses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/comm/internal/rendezvous/store_client.h"
#include "dtrain/comm/internal/rendezvous/store_server.h"

namespace dtrain::comm {

/// A rank's input to the rendezvous.
struct RendezvousOptions {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  base::StoreSockets store = {};  ///< sockets inherited from dtrun; unset without it
  std::string master_addr;
  std::int64_t master_port = 0;
  std::string token;  ///< the job's secret; empty: none
  /// True if every rank is known to be on this host. If false, rank 0 listens at all addresses to
  /// which other hosts may resolve master_addr.
  bool is_one_host = true;
  /// Called on rank 0 with the port at which it listens, before it waits for others; may be empty.
  std::function<void(std::int64_t port)> publish = {};
  /// Prints which ranks this one is waiting for.
  bool reports_waiting = true;
  std::string waiting_advice = {};  ///< appended to the first such line; empty: none
};

/// Outcome of the rendezvous: a connection to the store, and the addresses of the ranks.
struct Rendezvous {
  std::unique_ptr<StoreServer> server;  ///< on rank 0 alone
  std::unique_ptr<StoreClient> store;
  std::string own_address;             ///< the address at which other ranks reach this one
  std::vector<std::string> addresses;  ///< by rank; empty for rank 0 if it listens at several
  std::string token;                   ///< the job's secret; empty: none
};

/// Serves the store (rank 0), connects to it, and returns when every rank has joined.
///
/// Throws: as create_world.
[[nodiscard]] std::shared_ptr<Rendezvous> join_rendezvous(const RendezvousOptions& options,
                                                          const base::Deadline& deadline);

/// All-gathers one string per member through the store, in group order. All members use one key.
///
/// Collective: the members.
/// Throws:     Error{timeout} naming the missing members, Error{comm} if the store is gone.
[[nodiscard]] std::vector<std::string> store_all_gather(
    StoreClient& store, const std::string& key, const std::vector<std::int64_t>& world_ranks,
    const std::string& own_value, const base::Deadline& deadline);
/// The same among all ranks of the job, 0 to size - 1.
[[nodiscard]] std::vector<std::string> store_all_gather(StoreClient& store, const std::string& key,
                                                        std::int64_t size,
                                                        const std::string& own_value,
                                                        const base::Deadline& deadline);

/// Throws an error that every rank of the job detects independently. Rank 0 first serves the store
/// a moment longer, so that the others can finish.
[[noreturn]] void fail_together(std::int64_t own_rank, const base::Error& error);

}  // namespace dtrain::comm
