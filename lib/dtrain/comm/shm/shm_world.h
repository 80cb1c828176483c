// Ranks that are processes of one host and share memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// A rank's announcement to the others before they share memory.
struct ShmCard {
  std::string host;         ///< host_of_process()
  std::string socket_name;  ///< of its ListenSocket
  std::string refusal;      ///< why it cannot share memory; empty: it can
};

/// Why these ranks cannot share memory, in one line; empty if they can.
[[nodiscard]] std::string obstacle_among(const std::vector<ShmCard>& cards);

/// The world of ranks that have met; null for backend auto where they cannot share memory.
///
/// Collective: all ranks of the job.
/// Throws:     for backend shm, Error{usage} naming two ranks on different hosts or the rank that
///             has no shared memory; Error{timeout} or Error{comm} naming a rank that has gone.
[[nodiscard]] std::shared_ptr<World> create_shm_world(
    const WorldOptions& options, const std::shared_ptr<Rendezvous>& rendezvous);

}  // namespace dtrain::comm
