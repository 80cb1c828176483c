#include "cuda/link.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <utility>

#include "cuda/stream.h"

namespace dtrain::cuda {

Link::Link(std::shared_ptr<GroupState> group, std::mutex& host_mutex, std::int64_t peer,
           Direction direction)
    : group_(std::move(group)),
      host_mutex_(host_mutex),
      peer_(peer),
      direction_(direction),
      stream_(new_stream(group_->device())) {}

void Link::post(std::shared_ptr<DeviceCall> call, const at::Tensor& tensor) {
  group_->will_post();
  lane_.call([this, call = std::move(call), tensor] {
    try {
      // For good: what the task holds ends behind it, on the thread's device.
      c10::cuda::set_device(group_->device().index());
      if (!group_->error()) {
        carry_out(*call, tensor);
        group_->watch(stream_, call);
      }
    } catch (const NcclFailure& failure) {
      group_->fail(call->record(), failure);
    } catch (...) {
      group_->fail(std::current_exception());
    }
    group_->was_posted();
  });
}

void Link::carry_out(DeviceCall& call, const at::Tensor& tensor) {
  const base::Deadline deadline(group_->options().timeout);
  if (!communicator_) connect(deadline);
  call.begin_on(stream_, {tensor});
  const cudaStream_t stream = c10::cuda::CUDAStream(stream_).stream();
  communicator_->enqueue(
      [&](ncclComm_t pair) {
        // In the communicator of the two the sender has rank 0.
        return direction_ == Direction::sends
                   ? ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclInt8, 1, pair, stream)
                   : ncclRecv(tensor.mutable_data_ptr(), tensor.nbytes(), ncclInt8, 0, pair,
                              stream);
      },
      deadline);
  call.end_on(stream_);
}

void Link::connect(const base::Deadline& deadline) {
  ncclUniqueId id{};
  const at::Tensor bytes = at::empty({NCCL_UNIQUE_ID_BYTES}, at::kByte);
  if (direction_ == Direction::sends) {
    if (ncclGetUniqueId(&id) != ncclSuccess) {
      throw NcclFailure(NcclFailure::Cause::failed, "NCCL cannot open a socket");
    }
    std::memcpy(bytes.data_ptr(), &id, sizeof(id));
  }
  comm::Work exchanged;
  {
    const std::lock_guard lock(host_mutex_);
    exchanged = direction_ == Direction::sends ? group_->host().send(bytes, peer_)
                                               : group_->host().recv(bytes, peer_);
  }
  exchanged.wait_host();
  std::memcpy(&id, bytes.data_ptr(), sizeof(id));
  communicator_ = std::make_shared<Communicator>();
  group_->add(communicator_);  // from now on an abort ends the wait below
  communicator_->join(id, {direction_ == Direction::sends ? 0 : 1, 2}, deadline);
}

}  // namespace dtrain::cuda
