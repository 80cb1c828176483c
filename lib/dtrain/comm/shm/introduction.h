// Exchanges memory between processes of one host. Private to comm/shm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/base/deadline.h"
#include "dtrain/base/descriptor.h"

namespace dtrain::comm {

/// Names what two processes must share to reach each other: the running system and its network
/// namespace. Virtual machines that were started from one snapshot may have one name.
///
/// Throws: Error{comm} naming the file that cannot be read.
[[nodiscard]] std::string host_of_process();

/// A unix socket in the abstract namespace, which leaves nothing in the file system.
struct ListenSocket {
  base::Descriptor socket;
  std::string name;  ///< random, and of its rank
};

/// Throws: Error{comm} with the reason.
[[nodiscard]] ListenSocket open_listen_socket(std::int64_t rank = 0);

/// The outcome of a try to connect to the listening socket of a name.
struct Reach {
  bool is_here = false;         ///< it is on this host
  base::Descriptor connection;  ///< none where others still wait to be taken in
};

/// Never blocks. No other host has a socket of that name, even if it shares the state of the random
/// numbers: there it is another rank's.
///
/// Throws: Error{comm} with the reason.
[[nodiscard]] Reach reach(const std::string& socket_name);

/// A rank's connection to another rank, and that rank's memory.
struct PeerConnection {
  base::Descriptor connection;  ///< hangs up when the other process ends
  base::Descriptor memory;      ///< its shared memory
};

/// Connects every pair of processes and gives each the others' memory; by rank, empty for the own.
/// Processes of other users are turned away. `to_first`: what reach() found at the first one's; may
/// be none.
///
/// Collective: all ranks of a host; socket_names: of their listening sockets, by rank; empty for
///             ranks of other hosts, which are left out.
/// Throws:     Error{timeout} or Error{comm} naming the rank that did not answer or has gone, also
///             when it had been met already.
[[nodiscard]] std::vector<PeerConnection> exchange_segments(
    std::int64_t own_rank, const ListenSocket& own, const std::vector<std::string>& socket_names,
    const base::Descriptor& own_memory, const base::Deadline& deadline,
    base::Descriptor to_first = {});

/// Returns whether the process at the other end has ended.
[[nodiscard]] bool has_hung_up(const base::Descriptor& connection);

}  // namespace dtrain::comm
