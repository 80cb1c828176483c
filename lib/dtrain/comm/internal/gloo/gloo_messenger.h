// Point-to-point messages between the ranks of one gloo group.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

/// The purpose of a message. Messages with one tag between two ranks arrive in the order sent.
enum class Tag : std::uint32_t {
  collective = 1,
  contribution,
  result,
  point_to_point,
  failure_notice,
  proof,
  never,  ///< never sent: a receive of it fails when the connection closes
};

/// A message in flight. Its buffer must outlive it. An unfinished message may be destroyed only
/// after an error, when the group is unusable.
struct Message {
  c10::intrusive_ptr<c10d::Work> work;
  std::int64_t peer = -1;
};

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

  [[nodiscard]] std::int64_t rank() const { return group_->getRank(); }
  [[nodiscard]] std::int64_t size() const { return group_->getSize(); }

  [[nodiscard]] Message send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  [[nodiscard]] Message recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  void wait(const Message& message, const base::Deadline& deadline);
  void wait(const std::vector<Message>& messages, const base::Deadline& deadline);
  /// The peer that wait() for several messages is waiting for; -1: none. Threads: any.
  [[nodiscard]] std::int64_t awaited() const noexcept { return awaited_; }

  /// Sums with gloo's own all-reduce, in an unspecified order.
  void all_reduce(const at::Tensor& tensor, const base::Deadline& deadline);

  /// Trusts the peers' failure notices from now on. Call it once all peers are authenticated.
  void trust_peers() { trusts_peers_ = true; }

  void close(const std::string& reason) noexcept;

 private:
  /// Throws: what gloo throws.
  Message post_recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  /// Posts a receive of one number from each peer into `numbers`, by peer.
  std::vector<Message> post_recv_from_all(Tag tag, std::vector<std::int64_t>& numbers);
  /// Returns true once gloo's own collective has ended, false if a closed connection stops it.
  ///
  /// Throws: what gloo throws.
  bool wait_collective(c10d::Work& work);
  /// Translates the gloo exception being handled. `peer`: the peer of the call; -1: all.
  TransportFailure failure(std::int64_t peer);
  /// The failure that names the peers whose connections are closed. Sends failure notices at once:
  /// a notice queues behind a partly sent message, which never completes once the caller has freed
  /// its buffer.
  TransportFailure closed_connection_failure(std::int64_t peer);
  /// Returns the failure notice of a disconnected peer, if it sent one and is trusted.
  std::optional<std::int64_t> notice_from(std::int64_t peer);
  /// Sends the notices once, and waits briefly for them to be sent.
  void send_failure_notices() noexcept;
  void close_connections() noexcept;

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::mutex post_mutex_;  // c10d numbers its calls without one
  std::mutex close_mutex_;
  std::atomic<std::int64_t> awaited_{-1};
  bool closed_ = false;
  std::string reason_;
  // Before a rank closes its connections, it sends its peers the rank whose exit is the cause (-1:
  // its own decision); otherwise a slower peer would blame this rank. After a timeout gloo has
  // closed the connections already, and the peers' errors point to this rank's own message.
  std::int64_t culprit_ = -1;
  bool has_sent_notices_ = false;
  std::atomic<bool> trusts_peers_{false};
  std::vector<std::int64_t> notices_;  // by peer
  std::vector<std::int64_t> never_;    // by peer: buffers for Tag::never
  std::vector<Message> notice_recvs_;  // by peer: posted from the start, used once
  std::unique_ptr<ConnectionWatchdog> watchdog_;
  bool is_ring_stuck_ = false;  // gloo's thread waits in its all-reduce until its own timeout
};

}  // namespace dtrain::comm
