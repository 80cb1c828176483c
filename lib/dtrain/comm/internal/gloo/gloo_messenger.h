// Point-to-point messages between the ranks of one gloo group.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/internal/gloo/failure_notices.h"
#include "dtrain/comm/internal/gloo/gloo_connections.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

class ConnectionWatchdog;

/// Posts messages, waits for them, and translates gloo's errors, which name ports, into
/// TransportFailures, which name ranks.
///
/// Threads: any.
class GlooMessenger {
 public:
  /// Throws: gloo's exception for a peer that has exited already.
  explicit GlooMessenger(c10::intrusive_ptr<c10d::ProcessGroupGloo> group);
  ~GlooMessenger();
  GlooMessenger(const GlooMessenger&) = delete;
  GlooMessenger& operator=(const GlooMessenger&) = delete;

  [[nodiscard]] std::int64_t rank() const { return connections_.rank(); }
  [[nodiscard]] std::int64_t size() const { return connections_.size(); }

  [[nodiscard]] Message send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  [[nodiscard]] Message recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  void wait(const Message& message, const base::Deadline& deadline);
  void wait(const std::vector<Message>& messages, const base::Deadline& deadline);
  /// The peer that wait() for several messages is waiting for; -1: none. Threads: any.
  [[nodiscard]] std::int64_t awaited() const noexcept { return awaited_; }

  /// Sums with gloo's own all-reduce, in an unspecified order.
  void all_reduce(const at::Tensor& tensor, const base::Deadline& deadline);

  /// Trusts the peers' failure notices from now on. Call it once all peers are authenticated.
  void trust_peers() { notices_.trust_peers(); }

  void close(const std::string& reason) noexcept;

 private:
  /// Translates the gloo exception being handled. `peer`: the peer of the call; -1: all.
  TransportFailure failure(std::int64_t peer);
  /// The failure that names the peers whose connections are closed. Sends failure notices at once:
  /// a notice queues behind a partly sent message, which never completes once the caller has freed
  /// its buffer.
  TransportFailure closed_connection_failure(std::int64_t peer);

  GlooConnections connections_;
  FailureNotices notices_;
  std::unique_ptr<ConnectionWatchdog> watchdog_;
  std::atomic<std::int64_t> awaited_{-1};
  std::mutex close_mutex_;
  bool closed_ = false;
  std::string reason_;
};

}  // namespace dtrain::comm
