#include "cuda/nccl/collectives.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/tree_reduce_body.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/reduce.h"

namespace dtrain::cuda {
namespace {

// Tensors up to this size are gathered whole and reduced by every rank, which saves a message.
constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

ncclDataType_t nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kLong:
      return ncclInt64;
    default:
      return ncclUint8;
  }
}

cudaStream_t current_cuda_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

std::byte* bytes_at(const at::Tensor& tensor, std::int64_t element) {
  return comm::bytes_of(tensor) + element * static_cast<std::int64_t>(tensor.element_size());
}

// parts (ranks, n) -> n elements at `output`.
void reduce_parts(const at::Tensor& parts, std::byte* output, comm::ReduceOp op) {
  AT_DISPATCH_V2(parts.scalar_type(), "tree_reduce", AT_WRAP([&] {
                   const auto launch_with = [&]<bool is_max, int levels>() {
                     const TreeReduceBody<scalar_t, is_max, levels> body{
                         .parts = parts.const_data_ptr<scalar_t>(),
                         .stride = parts.size(1),
                         .ranks = parts.size(0),
                         .output = reinterpret_cast<scalar_t*>(output)};
                     launch(body, current_cuda_stream());
                   };
                   const bool is_max = op == comm::ReduceOp::max;
                   if (parts.size(0) / comm::tree_group_size(parts.size(0)) <= 1 << kFewLevels) {
                     is_max ? launch_with.template operator()<true, kFewLevels>()
                            : launch_with.template operator()<false, kFewLevels>();
                   } else {
                     is_max ? launch_with.template operator()<true, kMaxLevels>()
                            : launch_with.template operator()<false, kMaxLevels>();
                   }
                 }),
                 at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kByte);
}

}  // namespace

void Collectives::run(const comm::Operation& operation, const base::Deadline& deadline) const {
  std::visit(
      [&](const auto& call) {
        if constexpr (requires { this->execute(call, deadline); }) {
          this->execute(call, deadline);
        } else {
          DTRAIN_CHECK(false, "not a collective operation on a device");
        }
      },
      operation);
}

void Collectives::execute(const comm::AllReduce& call, const base::Deadline& deadline) const {
  // NCCL's maximum does not propagate NaN.
  if (reduction_ != comm::Reduction::fast || call.op != comm::ReduceOp::sum) {
    return tree_all_reduce(call, deadline);
  }
  communicator_->enqueue(
      [&](ncclComm_t group) {
        void* data = call.tensor.mutable_data_ptr();
        return ncclAllReduce(data, data, static_cast<std::size_t>(call.tensor.numel()),
                             nccl_type(call.tensor.scalar_type()), ncclSum, group,
                             current_cuda_stream());
      },
      deadline);
}

void Collectives::tree_all_reduce(const comm::AllReduce& call,
                                  const base::Deadline& deadline) const {
  const at::Tensor& tensor = call.tensor;
  if (tensor.nbytes() <= kSmallBytes) {
    const at::Tensor parts = at::empty({size_, tensor.numel()}, tensor.options());
    gather_equal(tensor, parts, deadline);
    return reduce_parts(parts, comm::bytes_of(tensor), call.op);
  }
  const auto size_of = static_cast<std::int64_t>(tensor.element_size());
  const auto begin_of = [&](std::int64_t rank) {
    return comm::slice_begin(tensor.numel(), size_, rank);
  };
  const std::int64_t own = begin_of(rank_ + 1) - begin_of(rank_);
  const auto own_bytes = static_cast<std::size_t>(own * size_of);
  const at::Tensor parts = at::empty({size_, own}, tensor.options());
  std::vector<PeerTransfer> scatter;
  std::vector<PeerTransfer> gather;
  for (std::int64_t peer = 0; peer < size_; ++peer) {
    std::byte* slice = bytes_at(tensor, begin_of(peer));
    const auto bytes = static_cast<std::size_t>((begin_of(peer + 1) - begin_of(peer)) * size_of);
    scatter.push_back({slice, bytes, bytes_at(parts, peer * own), own_bytes});
    gather.push_back({bytes_at(tensor, begin_of(rank_)), own_bytes, slice, bytes});
  }
  exchange(scatter, deadline);
  reduce_parts(parts, bytes_at(tensor, begin_of(rank_)), call.op);
  exchange(gather, deadline);
}

void Collectives::execute(const comm::ReduceScatter& call, const base::Deadline& deadline) const {
  const at::Tensor& input = call.input;
  const at::Tensor& output = call.output;
  if (reduction_ == comm::Reduction::fast) {
    register_memory(input, deadline);
    register_memory(output, deadline);
    return communicator_->enqueue(
        [&](ncclComm_t group) {
          return ncclReduceScatter(input.const_data_ptr(), output.mutable_data_ptr(),
                                   static_cast<std::size_t>(output.numel()),
                                   nccl_type(input.scalar_type()), ncclSum, group,
                                   current_cuda_stream());
        },
        deadline);
  }
  const at::Tensor parts = at::empty({size_, output.numel()}, output.options());
  std::vector<PeerTransfer> scatter;
  for (std::int64_t peer = 0; peer < size_; ++peer) {
    const std::int64_t at = peer * output.numel();
    scatter.push_back({bytes_at(input, at), output.nbytes(), bytes_at(parts, at), output.nbytes()});
  }
  exchange(scatter, deadline);
  reduce_parts(parts, comm::bytes_of(output), comm::ReduceOp::sum);
}

void Collectives::execute(const comm::AllGather& call, const base::Deadline& deadline) const {
  if (!call.takes_counts) return gather_equal(call.input, call.output.tensor, deadline);
  std::vector<PeerTransfer> peers;
  for (std::int64_t peer = 0; peer < size_; ++peer) {
    const std::span<std::byte> part = call.output.part(peer);
    peers.push_back({comm::bytes_of(call.input), call.input.nbytes(), part.data(), part.size()});
  }
  exchange(peers, deadline);
}

void Collectives::gather_equal(const at::Tensor& input, const at::Tensor& output,
                               const base::Deadline& deadline) const {
  register_memory(input, deadline);
  register_memory(output, deadline);
  communicator_->enqueue(
      [&](ncclComm_t group) {
        return ncclAllGather(input.const_data_ptr(), output.mutable_data_ptr(), input.nbytes(),
                             ncclInt8, group, current_cuda_stream());
      },
      deadline);
}

void Collectives::execute(const comm::AllToAll& call, const base::Deadline& deadline) const {
  std::vector<PeerTransfer> peers;
  for (std::int64_t peer = 0; peer < size_; ++peer) {
    const std::span<std::byte> given = call.input.part(peer);
    const std::span<std::byte> taken = call.output.part(peer);
    peers.push_back({given.data(), given.size(), taken.data(), taken.size()});
  }
  exchange(peers, deadline);
}

void Collectives::execute(const comm::Broadcast& call, const base::Deadline& deadline) const {
  communicator_->enqueue(
      [&](ncclComm_t group) {
        void* data = call.tensor.mutable_data_ptr();
        return ncclBroadcast(data, data, call.tensor.nbytes(), ncclInt8,
                             static_cast<int>(call.root), group, current_cuda_stream());
      },
      deadline);
}

void Collectives::exchange(const std::vector<PeerTransfer>& peers,
                           const base::Deadline& deadline) const {
  DTRAIN_CHECK(static_cast<std::int64_t>(peers.size()) == size_);
  const PeerTransfer& own = peers[static_cast<std::size_t>(rank_)];
  if (own.send != own.recv && own.send_bytes > 0) {
    check(cudaMemcpyAsync(own.recv, own.send, own.send_bytes, cudaMemcpyDeviceToDevice,
                          current_cuda_stream()),
          "copying within a GPU");
  }
  communicator_->enqueue(
      [&](ncclComm_t group) {
        ncclResult_t result = ncclSuccess;
        const auto add = [&](ncclResult_t next) {
          if (result == ncclSuccess || result == ncclInProgress) result = next;
        };
        for (std::int64_t peer = 0; peer < size_; ++peer) {
          const PeerTransfer& with = peers[static_cast<std::size_t>(peer)];
          if (peer == rank_) continue;
          const int other = static_cast<int>(peer);
          if (with.send_bytes > 0) {
            add(ncclSend(with.send, with.send_bytes, ncclInt8, other, group,
                         current_cuda_stream()));
          }
          if (with.recv_bytes > 0) {
            add(ncclRecv(with.recv, with.recv_bytes, ncclInt8, other, group,
                         current_cuda_stream()));
          }
        }
        return result;
      },
      deadline);
}

}  // namespace dtrain::cuda
