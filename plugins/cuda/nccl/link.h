// Streams for communication, and one direction between two ranks of a group.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/nccl/group_state.h"
#include "dtrain/comm/serial_executor.h"

namespace dtrain::cuda {

/// A stream that no one else uses, before others in turn: a call that waits for a peer holds up
/// nothing but the calls behind it. It stays until the process ends, because the allocator asks the
/// streams that used a tensor when it is given back.
[[nodiscard]] c10::Stream new_stream(c10::Device device);

/// The sends of a rank, or its receives, of all groups: one stream, and a thread that puts them
/// there in the order in which they were called. So a message waits for nothing on the device but
/// messages that were called before it (docs/guide/devices.md).
///
/// Threads: one calls.
class MessageLane {
 public:
  explicit MessageLane(c10::Device device) : device_(device) {}

  /// Made by the first call.
  [[nodiscard]] const c10::Stream& stream();
  /// Runs a task that must not throw, in the lane's thread.
  template <typename Task>
  void call(Task task) {
    lane_.call(std::move(task));
  }

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;
  comm::SerialExecutor lane_;
};

/// Those of a rank.
struct MessageLanes {
  explicit MessageLanes(c10::Device device) : sends(device), receives(device) {}

  MessageLane sends;
  MessageLane receives;
};

/// The sends of one rank to another, or its receives from another: a communicator of the two, so
/// that they wait for no other peer. The first message connects them, in the lane's thread.
///
/// Threads: post from one.
class Link : public std::enable_shared_from_this<Link> {
 public:
  enum class Direction { sends, receives };

  Link(std::shared_ptr<GroupState> group, std::int64_t peer, Direction direction);

  /// Puts the call on the lane's stream: `tensor` is sent, or received.
  void post(MessageLane& lane, std::shared_ptr<DeviceCall> call, const at::Tensor& tensor);

 private:
  void carry_out(DeviceCall& call, const c10::Stream& on, const at::Tensor& tensor);
  void connect(const base::Deadline& deadline);

  const std::shared_ptr<GroupState> group_;
  const std::int64_t peer_;
  const Direction direction_;
  std::shared_ptr<Communicator> communicator_;  // null before the first message
};

}  // namespace dtrain::cuda
