// The sockets of dtrun through which its ranks reach the store that rank 0 serves.
#pragma once

#include <cstdint>

namespace dtrain::base {

/// As dtrun's environment variables name them; unset in ranks that dtrun did not start.
struct StoreSockets {
  /// One node: this rank's end of dtrun's rendezvous socket, a pair of unix sockets
  /// (DTRUN_STORE_FD); -1: ranks meet over TCP.
  int rendezvous_fd = -1;
  /// Several nodes: where node 0's dtrun listens (DTRUN_STORE_PORT); 0: rank 0 listens by itself.
  std::int64_t port = 0;
  /// Of rank 0: the socket that listens there (DTRUN_STORE_LISTENER_FD); -1: none.
  int listener_fd = -1;
};

}  // namespace dtrain::base
