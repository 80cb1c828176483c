#include "cuda/nccl/point_to_point.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "cuda/check.h"

namespace dtrain::cuda {

c10::Stream new_stream(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "querying stream priorities");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
        "creating a stream");
  return c10::cuda::getStreamFromExternal(stream, device.index());
}

const c10::Stream& MessageStream::stream() {
  if (!stream_) stream_ = new_stream(device_);
  return *stream_;
}

P2pConnection::P2pConnection(std::shared_ptr<GroupState> group, std::int64_t peer,
                             Direction direction)
    : group_(std::move(group)), peer_(peer), direction_(direction) {}

void P2pConnection::post(MessageStream& messages, std::shared_ptr<DeviceCall> call,
                         const at::Tensor& tensor) {
  const c10::Stream stream = messages.stream();
  group_->begin_post();
  messages.call([self = shared_from_this(), stream, call = std::move(call), tensor] {
    GroupState& group = *self->group_;
    try {
      // Stays set: the objects that the task owns are destroyed later, on the thread's device.
      c10::cuda::set_device(group.config().device.index());
      if (!group.error().is_set()) {
        self->carry_out(*call, stream, tensor);
        group.watch(stream, call);
      }
    } catch (const TransportFailure& failure) {
      group.error().set(call->record(), failure);
    } catch (...) {
      group.error().set(std::current_exception());
    }
    group.end_post();
  });
}

void P2pConnection::carry_out(DeviceCall& call, const c10::Stream& on, const at::Tensor& tensor) {
  const base::Deadline deadline(group_->config().options.timeout);
  if (!communicator_) connect(deadline);
  call.begin_on(on, {tensor});
  const cudaStream_t stream = c10::cuda::CUDAStream(on).stream();
  communicator_->enqueue(
      [&](ncclComm_t pair) {
        // The sender is rank 0 of the two-rank communicator.
        return direction_ == Direction::sends
                   ? ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclInt8, 1, pair, stream)
                   : ncclRecv(tensor.mutable_data_ptr(), tensor.nbytes(), ncclInt8, 0, pair,
                              stream);
      },
      deadline);
  call.end_on(on);
}

void P2pConnection::connect(const base::Deadline& deadline) {
  ncclUniqueId id{};
  const at::Tensor bytes = at::empty({NCCL_UNIQUE_ID_BYTES}, at::kByte);
  if (direction_ == Direction::sends) {
    if (ncclGetUniqueId(&id) != ncclSuccess) {
      throw TransportFailure(TransportFailure::Cause::failed, {}, "NCCL cannot open a socket");
    }
    std::memcpy(bytes.data_ptr(), &id, sizeof(id));
  }
  comm::Work exchanged = direction_ == Direction::sends
                             ? group_->post_on_host(comm::Send{bytes, peer_})
                             : group_->post_on_host(comm::Recv{bytes, peer_});
  exchanged.wait_host();
  std::memcpy(&id, bytes.data_ptr(), sizeof(id));
  communicator_ = std::make_shared<Communicator>();
  group_->add(communicator_);  // from now on an abort ends the wait below
  communicator_->join(id, {direction_ == Direction::sends ? 0 : 1, 2}, deadline,
                      CommunicatorUse::messages);
}

}  // namespace dtrain::cuda
