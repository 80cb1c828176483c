// Serves the rendezvous store on rank 0.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/internal/rendezvous/job_store.h"
#include "dtrain/comm/internal/rendezvous/request_server.h"
#include "dtrain/net/handshake.h"

namespace dtrain::comm {

/// Admits ranks to a JobStore and serves their requests, in its own thread.
///
/// Accepts no connections once every rank has joined; unauthenticated ones are dropped
/// (net/handshake.h).
class StoreServer {
 public:
  struct Options {
    std::int64_t size = 1;
    /// Receives the ranks' connections through dtrun; if unset, ranks connect to `listeners`.
    base::Descriptor rendezvous_socket;
    std::vector<base::Descriptor> listeners;
    std::string token;  ///< the job's secret; empty: all ranks belong to one user on this machine
    bool sends_credential = false;  ///< ranks receive the token in a munge credential
    /// The time in which a TCP connection must authenticate. Connections from dtrun, through
    /// `rendezvous_socket`, have no such limit.
    std::chrono::milliseconds auth_timeout = std::chrono::seconds(10);
    std::optional<base::WaitReporter> waiting = {};  ///< prints missing ranks; empty: silent
  };

  /// Throws: Error{comm} if the system refuses sockets or a thread.
  explicit StoreServer(Options options);
  /// Stops at once; pending requests see a closed connection.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// Returns rank 0's own connection; call it once.
  [[nodiscard]] base::Descriptor take_own_connection() { return std::move(own_); }
  /// Lets the thread end once every rank has left.
  void finish() noexcept;

 private:
  void run();
  void serve_once();
  [[nodiscard]] bool is_done() const;
  /// Returns whether ranks are missing and the job has not been rejected.
  [[nodiscard]] bool is_waiting() const { return !store_.all_joined() && !store_.failure(); }
  [[nodiscard]] int poll_timeout() const;
  void accept_from_dtrun();
  void admit(net::HandshakeServer::Client client);

  Options options_;
  net::HandshakeServer handshakes_;
  JobStore store_;
  RequestServer requests_{store_};
  base::Descriptor own_;
  base::Descriptor wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> finishing_{false};
  std::thread thread_;
};

}  // namespace dtrain::comm
