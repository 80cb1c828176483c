// Point-to-point messages between two ranks of a group, and their streams.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/nccl/group_state.h"
#include "dtrain/comm/serial_executor.h"

namespace dtrain::cuda {

/// Creates a high-priority stream that nothing else uses, so that a call that waits for a peer
/// delays only later calls on this stream. The stream is never destroyed, because the caching
/// allocator queries it when a tensor that was used on it is freed.
[[nodiscard]] c10::Stream new_stream(c10::Device device);

/// The stream of all sends, or all receives, of a rank over all groups, and the thread that enqueues
/// them in call order. On the device, a message only waits for messages called before it
/// (docs/guide/devices.md).
///
/// Threads: one caller.
class MessageStream {
 public:
  explicit MessageStream(c10::Device device) : device_(device) {}

  /// Created by the first call.
  [[nodiscard]] const c10::Stream& stream();
  /// Runs a task, which must not throw, in the thread.
  template <typename Task>
  void call(Task task) {
    executor_.call(std::move(task));
  }

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;
  comm::SerialExecutor executor_;
};

/// Both message streams of a rank.
struct MessageStreams {
  explicit MessageStreams(c10::Device device) : sends(device), receives(device) {}

  MessageStream sends;
  MessageStream receives;
};

/// One direction of messages between this rank and a peer, over a two-rank communicator, so that they
/// do not wait for other peers. The first message connects it, in the thread of MessageStream.
///
/// Threads: one caller of post.
class P2pConnection : public std::enable_shared_from_this<P2pConnection> {
 public:
  enum class Direction { sends, receives };

  P2pConnection(std::shared_ptr<GroupState> group, std::int64_t peer, Direction direction);

  /// Enqueues the send or receive of `tensor` on the stream of `messages`.
  void post(MessageStream& messages, std::shared_ptr<DeviceCall> call, const at::Tensor& tensor);

 private:
  void carry_out(DeviceCall& call, const c10::Stream& on, const at::Tensor& tensor);
  void connect(const base::Deadline& deadline);

  const std::shared_ptr<GroupState> group_;
  const std::int64_t peer_;
  const Direction direction_;
  std::shared_ptr<Communicator> communicator_;  // null before the first message
};

}  // namespace dtrain::cuda
