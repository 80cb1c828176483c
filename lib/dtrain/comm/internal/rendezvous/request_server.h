// Answers the requests of the ranks that have joined the rendezvous.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/internal/rendezvous/job_store.h"
#include "dtrain/comm/internal/rendezvous/wire.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

/// Answers requests (wire.h) from a JobStore. A rank that disconnects without leaving fails the
/// job.
///
/// Threads: one.
class RequestServer {
 public:
  /// `store` must outlive this.
  explicit RequestServer(JobStore& store) : store_(store) {}

  /// Adds the connection of a rank, and handles the requests that have already arrived.
  void add(net::FramedStream stream, std::int64_t rank);
  /// Appends the descriptors to poll.
  void add_to(std::vector<pollfd>& polled) const;
  /// The time at which answer_waiters() must be called even if nothing arrives.
  [[nodiscard]] base::Clock::time_point next_deadline() const;
  /// Reads and handles requests. polled: what add_to has appended, after poll.
  void serve(std::span<const pollfd> polled);
  /// Answers the waiting requests that can be answered or whose time has passed, and removes the
  /// connections that are over.
  void answer_waiters();
  /// Returns whether every added rank has left or was lost.
  [[nodiscard]] bool all_left() const { return connections_.empty(); }

 private:
  enum class Wait { none, gather, failure };
  struct Connection {
    net::FramedStream stream;
    std::int64_t rank = 0;
    Wait wait = Wait::none;  // what it waits for, until `deadline`
    base::Deadline deadline{std::chrono::milliseconds(0)};
    std::string key = {};  // of the gather that it waits for
    bool is_over = false;
  };

  void read_from(Connection& connection);
  void take_messages(Connection& connection);
  void handle(Connection& connection, const std::string& message);
  void handle_wait(Connection& connection, StoreRequest request, net::MessageReader& reader);
  void send_failure(Connection& connection) const;
  void try_answer(Connection& connection);

  JobStore& store_;
  std::vector<Connection> connections_;
  std::uint64_t answered_version_ = 0;  // the store's version() up to which waits were answered
};

}  // namespace dtrain::comm
