// Finds the other ranks through the store that rank 0 serves.
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

/// The place where a job's ranks meet, as a rank knows it.
struct MeetingPlace {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  base::StoreSockets store = {};  ///< dtrun's ways to the store
  std::string master_addr;
  std::int64_t master_port = 0;
  std::string token;  ///< the job's secret; empty: none
  /// Every rank is known to be on this host. Otherwise rank 0 listens wherever others may look for
  /// master_addr.
  bool is_one_host = true;
  /// Receives the port at which rank 0 listens, before it waits for others; may be empty.
  std::function<void(std::int64_t port)> publish = {};
  /// Print which ranks this one waits for.
  bool tells_of_waiting = true;
  std::string waiting_advice = {};  ///< appended to the first such line; empty: none
};

/// The store of a job, and the addresses of its ranks.
struct Rendezvous {
  std::unique_ptr<StoreServer> server;  ///< of rank 0
  std::unique_ptr<StoreClient> store;
  std::string own_address;             ///< at which other ranks reach this one
  std::vector<std::string> addresses;  ///< by rank: its own towards rank 0; empty: it has several
  std::string token;                   ///< the job's secret; empty: none
};

/// Serves the store (rank 0), connects to it, and returns when every rank has come.
///
/// Throws: as create_world.
[[nodiscard]] std::shared_ptr<Rendezvous> meet_all_ranks(const MeetingPlace& place,
                                                         const base::Deadline& deadline);

/// Returns each member's note, in their order, when every member has called this with the same key.
///
/// Throws: Error{timeout} naming the members that did not come, Error{comm} if the store is gone.
[[nodiscard]] std::vector<std::string> exchange_notes(StoreClient& store, const std::string& key,
                                                      const std::vector<std::int64_t>& world_ranks,
                                                      const std::string& own_note,
                                                      const base::Deadline& deadline);
/// The same of ranks 0 to size - 1: all ranks of the job.
[[nodiscard]] std::vector<std::string> exchange_notes(StoreClient& store, const std::string& key,
                                                      std::int64_t size,
                                                      const std::string& own_note,
                                                      const base::Deadline& deadline);

/// Fails with an error that every rank of the job finds for itself. Rank 0 serves the store a
/// moment longer, so that the others can.
[[noreturn]] void fail_together(std::int64_t own_rank, const base::Error& error);

}  // namespace dtrain::comm
