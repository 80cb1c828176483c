// The collective operations of a group, put on its stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/communicator.h"
#include "cuda/registered_memory.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::cuda {

/// What a rank gives one peer, and gets from it. Units: bytes.
struct Swap {
  const std::byte* give = nullptr;
  std::size_t give_bytes = 0;
  std::byte* take = nullptr;
  std::size_t take_bytes = 0;
};

/// Puts operations on the current stream, where their scratch memory comes from, too.
///
/// Throws: NcclFailure; c10::Error.
class Collectives {
 public:
  /// memory: from which arenas come; null in a group of one, as the communicator.
  Collectives(std::shared_ptr<Communicator> communicator, std::shared_ptr<RegisteredMemory> memory,
              CommunicatorRank place)
      : communicator_(std::move(communicator)),
        memory_(std::move(memory)),
        rank_(place.rank),
        size_(place.size) {}

  /// By NCCL's own algorithm. op: sum.
  void fast_all_reduce(const at::Tensor& tensor, const base::Deadline& deadline) const;
  void fast_reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                           const base::Deadline& deadline) const;
  /// In the order of comm/tree_order.h, whatever the ranks are: each rank reduces a slice.
  void tree_all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                       const base::Deadline& deadline) const;
  void tree_reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                           const base::Deadline& deadline) const;
  void all_gather(const at::Tensor& input, const at::Tensor& output,
                  const base::Deadline& deadline) const;
  void broadcast(const at::Tensor& tensor, std::int64_t root, const base::Deadline& deadline) const;
  /// peers: by rank; with itself a rank copies, unless both places are one.
  void exchange(const std::vector<Swap>& peers, const base::Deadline& deadline) const;

 private:
  void enqueue(const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& calls,
               const base::Deadline& deadline) const;
  /// NCCL may use an arena's memory in place from now on.
  void register_memory(const at::Tensor& tensor, const base::Deadline& deadline) const {
    memory_->segments().register_with(communicator_, tensor.const_data_ptr(), deadline);
  }

  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<RegisteredMemory> memory_;
  std::int64_t rank_;
  std::int64_t size_;
};

}  // namespace dtrain::cuda
