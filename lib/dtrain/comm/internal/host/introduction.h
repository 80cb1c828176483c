// Exchanges memory between processes of one host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"

namespace dtrain::comm {

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

/// A rank's part in the meeting on its host.
struct HostMember {
  std::int64_t rank = 0;
  std::vector<std::int64_t> ranks;  ///< of all on the host, in ascending order
  std::string socket_name;          ///< of the first one's listening socket
  ListenSocket listener = {};       ///< that socket; of the first one alone
  base::Descriptor to_first = {};   ///< a connection to it; may be none
};

/// Gives every rank of a host the memory of all: take(rank, memory) for each, in ascending order.
/// They hand their memory to the first one, and it hands all of it to each, so that the work is
/// one connection per rank, which ends here. Processes of other users are turned away.
///
/// Collective: all ranks of a host.
/// Throws:     Error{timeout} or Error{comm} naming the rank that did not answer or has gone, also
///             when it had been met already.
void exchange_segments(HostMember self, const base::Descriptor& own_memory,
                       const base::Deadline& deadline,
                       const std::function<void(std::int64_t, base::Descriptor)>& take);

}  // namespace dtrain::comm
