// Messages between the ranks of one gloo group.
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

/// The purpose of a message. Messages of one kind between two ranks arrive in the order of sending.
enum class Tag : std::uint32_t {
  collective = 1,
  contribution,
  result,
  point_to_point,
  note,
  proof,
  never,  ///< nobody sends one: waiting for it shows when the connection closes
};

/// A message under way. Its memory must outlive it. Destroying it unfinished is safe only after an
/// error: the group is then dead.
struct Message {
  c10::intrusive_ptr<c10d::Work> work;
  std::int64_t peer = -1;
};

class CloseWatch;

/// Posts messages, waits for them, and turns gloo's errors, which speak of ports, into
/// TransportFailures, which speak of ranks.
///
/// Threads: any.
class Link {
 public:
  /// Throws: what gloo throws for a peer that is gone already.
  explicit Link(c10::intrusive_ptr<c10d::ProcessGroupGloo> group);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] std::int64_t rank() const { return group_->getRank(); }
  [[nodiscard]] std::int64_t size() const { return group_->getSize(); }

  [[nodiscard]] Message send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  [[nodiscard]] Message recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  void wait(const Message& message, const base::Deadline& deadline);
  void wait(const std::vector<Message>& messages, const base::Deadline& deadline);
  /// The peer of the message that the last wait() for several waits for; -1: none. Threads: any.
  [[nodiscard]] std::int64_t awaited() const noexcept { return awaited_; }

  /// gloo's own sum, which adds in any order.
  void all_reduce(const at::Tensor& tensor, const base::Deadline& deadline);

  /// Believes from now on whom peers blame for closing a connection: all have proved to be ranks.
  void trust_peers() { trusts_peers_ = true; }

  void close(const std::string& reason) noexcept;

 private:
  /// Throws: what gloo throws.
  Message post_recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  /// Expects one such message from each peer; `numbers`: by peer, where they go.
  std::vector<Message> expect_from_all(Tag tag, std::vector<std::int64_t>& numbers);
  /// Returns true once gloo's own collective has ended, false if a closed connection stops it.
  ///
  /// Throws: what gloo throws.
  bool wait_collective(c10d::Work& work);
  /// The failure for the gloo exception being handled. `peer`: whom the call was about; -1: all.
  TransportFailure failure(std::int64_t peer);
  /// The failure that names the peers whose connections are closed. Tells it to the peers at once:
  /// a note cannot pass a message that is halfway through, and which never ends once its sender,
  /// the caller, has given up its memory.
  TransportFailure blame_connections(std::int64_t peer);
  /// Returns the note that a gone peer wrote before it went, if any and if it can be trusted.
  std::optional<std::int64_t> note_from(std::int64_t peer);
  /// Once; waits a moment for them to leave.
  void send_notes() noexcept;
  void cut_connections() noexcept;

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::mutex post_mutex_;  // c10d numbers its calls without one
  std::mutex close_mutex_;
  std::atomic<std::int64_t> awaited_{-1};
  bool closed_ = false;
  std::string reason_;
  // Before a rank cuts its connections, it tells its peers whose death was the reason (-1: its own
  // decision); else a slower peer would blame the messenger. After a deadline gloo has cut the
  // connections already, and the peers are pointed to the messenger's own message.
  std::int64_t culprit_ = -1;
  bool has_sent_notes_ = false;
  std::atomic<bool> trusts_peers_{false};
  std::vector<std::int64_t> notes_;  // by peer
  std::vector<std::int64_t> never_;  // by peer: room for messages that nobody sends
  std::vector<Message> note_recvs_;  // by peer: posted from the start, used once
  std::unique_ptr<CloseWatch> watch_;
  bool is_stuck_ = false;  // gloo's own thread waits for what will never come, until its deadline
};

}  // namespace dtrain::comm
