// The store that rank 0 serves while the ranks meet.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/internal/rendezvous/job_store.h"
#include "dtrain/comm/internal/rendezvous/wire.h"
#include "dtrain/net/handshake.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

/// Serves a JobStore in a thread of its own.
///
/// Admits nobody once every rank has come; strangers have no effect (net/handshake.h). A rank that
/// ends without a word fails the job.
class StoreServer {
 public:
  struct Options {
    std::int64_t size = 1;
    base::Descriptor door;                    ///< ranks' connections are handed in here (dtrun); or
    std::vector<base::Descriptor> listeners;  ///< they connect here
    std::string token;  ///< of the job; empty: ranks are processes of one user of this machine
    bool seals_token = false;  ///< those who come are given it, in a credential of munge
    /// The time in which a stranger must prove to be a rank. Who comes from dtrun, through the
    /// door, is none, and may take as long as the job waits for it.
    std::chrono::milliseconds patience = std::chrono::seconds(10);
    std::optional<base::WaitingLines> waiting = {};  ///< prints missing ranks; empty: silent
  };

  /// Throws: Error{comm} where the system refuses sockets or a thread.
  explicit StoreServer(Options options);
  /// Ends at once; pending requests see a closed connection.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// Rank 0's own connection. Once.
  [[nodiscard]] base::Descriptor take_own_connection() { return std::move(own_); }
  /// Lets the thread end as soon as every rank has taken its leave.
  void finish() noexcept;

 private:
  enum class Wish { none, meeting, refusal };
  struct Connection {
    net::FramedStream stream;
    std::int64_t rank = 0;
    base::Clock::time_point patience = {};
    Wish wish = Wish::none;  // what it waits for, until `patience`
    std::string key = {};    // of the meeting that it waits for
    bool is_over = false;
  };

  void run();
  void serve_once();
  [[nodiscard]] bool is_done() const;
  /// Returns whether ranks are missing and the job has not been rejected.
  [[nodiscard]] bool is_waiting() const { return !store_.everyone_came() && !store_.refusal(); }
  [[nodiscard]] int poll_timeout() const;
  void take_from_door();
  void admit(net::Reception::Guest guest);
  void read_from(Connection& connection);
  void take_messages(Connection& connection);
  void handle(Connection& connection, const std::string& message);
  void hear_wish(Connection& connection, StoreRequest request, net::MessageReader& reader);
  static void answer(Connection& connection, std::string_view text);
  void answer_refusal(Connection& connection) const;
  void answer_waiting(Connection& connection);
  void settle();

  Options options_;
  net::Reception reception_;
  JobStore store_;
  base::Descriptor own_;
  base::Descriptor wake_;
  std::vector<Connection> connections_;
  std::uint64_t news_ = 0;  // of the store, as far as those who wait have been answered
  std::atomic<bool> stopping_{false};
  std::atomic<bool> finishing_{false};
  std::thread thread_;
};

}  // namespace dtrain::comm
