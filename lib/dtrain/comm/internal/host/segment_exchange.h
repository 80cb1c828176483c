// Exchanges the file descriptors of memory segments between the ranks of one host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"

namespace dtrain::comm {

/// A listening unix socket in the abstract namespace, which leaves nothing in the file system.
struct ListenSocket {
  base::Descriptor socket;
  std::string name;  ///< contains the rank and random digits
};

/// Throws: Error{comm} with the reason.
[[nodiscard]] ListenSocket open_listen_socket(std::int64_t rank = 0);

/// The outcome of try_connect().
struct ConnectResult {
  bool is_same_host = false;    ///< the socket exists on this host
  base::Descriptor connection;  ///< empty if the socket's backlog is full
};

/// Connects to a listening socket by name; never blocks. The name is unique across hosts, even
/// between virtual machines that share the random state, because it contains the rank.
///
/// Throws: Error{comm} with the reason.
[[nodiscard]] ConnectResult try_connect(const std::string& socket_name);

/// One rank's input to exchange_segments(). The host's lowest rank is its leader.
struct HostMember {
  std::int64_t rank = 0;
  std::vector<std::int64_t> ranks;          ///< all ranks of the host, in ascending order
  std::string socket_name;                  ///< the leader's listening socket
  ListenSocket listener = {};               ///< that socket; on the leader alone
  base::Descriptor leader_connection = {};  ///< a connection to the leader; may be empty
};

/// Gives every rank of a host the segments of all its ranks: calls take(rank, memory) for each
/// rank, in ascending order. The leader collects all segments and sends them to every rank, so each
/// rank needs one connection, which is closed on return. Processes of other users are rejected.
///
/// Collective: all ranks of a host.
/// Throws:     Error{timeout} or Error{comm} naming the rank that did not answer or has exited,
///             even if it had sent its segment already.
void exchange_segments(HostMember self, const base::Descriptor& own_memory,
                       const base::Deadline& deadline,
                       const std::function<void(std::int64_t, base::Descriptor)>& take);

}  // namespace dtrain::comm
