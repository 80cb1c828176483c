// Messages between the ranks of one gloo group. Private to comm/gloo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "dtrain/comm/deadline.h"
#include "dtrain/comm/transport.h"

namespace dtrain::comm {

/// What a message is for. Messages of one kind between two ranks arrive in the order of sending.
enum class Tag : std::uint32_t {
  collective = 1,
  contribution,
  result,
  point_to_point,
  note,
  probe
};

/// A message under way. Its memory must outlive it. Destroying it unfinished is safe only after an
/// error: the group is then dead.
struct Message {
  c10::intrusive_ptr<c10d::Work> work;
  std::int64_t peer = -1;
};

/// Posts messages, waits for them, and turns gloo's errors, which speak of ports, into
/// TransportFailures, which speak of ranks.
///
/// Threads: any.
class Link {
 public:
  explicit Link(c10::intrusive_ptr<c10d::ProcessGroupGloo> group);

  [[nodiscard]] std::int64_t rank() const { return group_->getRank(); }
  [[nodiscard]] std::int64_t size() const { return group_->getSize(); }

  [[nodiscard]] Message send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  [[nodiscard]] Message recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag);
  void wait(const Message& message, const Deadline& deadline);
  void wait(const std::vector<Message>& messages, const Deadline& deadline);

  /// gloo's own all-reduce, in whatever order it adds.
  void all_reduce(const at::Tensor& tensor, ReduceOp op, const Deadline& deadline);

  void close(const std::string& reason) noexcept;

 private:
  /// The failure for the gloo exception being handled. `peer`: whom the call was about; -1: all.
  TransportFailure failure(std::int64_t peer);
  TransportFailure failure_of_connections(std::int64_t peer);
  /// The peers whose connections are closed.
  std::vector<std::int64_t> gone_peers();
  /// What a gone peer wrote before it went, if anything.
  std::optional<std::int64_t> note_from(std::int64_t peer);
  void send_notes() noexcept;
  void cut_connections() noexcept;

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::mutex post_mutex_;  // c10d numbers its calls without one
  std::mutex close_mutex_;
  bool closed_ = false;
  std::string reason_;
  // Before it cuts its connections a rank writes to its peers whose death made it do so (-1: its
  // own decision); else a peer that is slower to notice would blame the messenger. After a deadline
  // gloo has cut the connections already, and the peers are pointed to the messenger's own message.
  std::int64_t culprit_ = -1;
  std::vector<std::int64_t> notes_;  // by peer
  std::vector<Message> note_recvs_;  // by peer: posted from the start, used once
};

}  // namespace dtrain::comm
