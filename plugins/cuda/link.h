// One direction between two ranks of a group.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <mutex>

#include "cuda/group_state.h"
#include "dtrain/comm/lane.h"

namespace dtrain::cuda {

/// The sends of one rank to another, or its receives from another: a communicator of the two and a
/// stream, so that they wait for nothing but each other. The first message connects them, in a
/// thread of the link's own.
///
/// Threads: post from one.
class Link {
 public:
  enum class Direction { sends, receives };

  /// host_mutex: held while the group's host().send and recv are called.
  Link(std::shared_ptr<GroupState> group, std::mutex& host_mutex, std::int64_t peer,
       Direction direction);

  /// Puts the call on the stream: `tensor` is sent, or received.
  void post(std::shared_ptr<DeviceCall> call, const at::Tensor& tensor);

 private:
  void carry_out(DeviceCall& call, const at::Tensor& tensor);
  void connect(const base::Deadline& deadline);

  const std::shared_ptr<GroupState> group_;
  std::mutex& host_mutex_;
  const std::int64_t peer_;
  const Direction direction_;
  const c10::Stream stream_;
  std::shared_ptr<Communicator> communicator_;  // null before the first message
  comm::Lane lane_;                             // ends before what it uses
};

}  // namespace dtrain::cuda
