// Enqueues a group's collective operations on a CUDA stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/nccl/communicator.h"
#include "cuda/nccl/registered_memory.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::cuda {

/// Enqueues operations on the caller's current stream (NcclGroup sets the group's), which also owns
/// their scratch memory.
///
/// Throws: TransportFailure; c10::Error.
class Collectives {
 public:
  /// memory: the arena allocator. `communicator` and `memory` are null in a single-rank group.
  Collectives(std::shared_ptr<Communicator> communicator, std::shared_ptr<RegisteredMemory> memory,
              CommunicatorRank place, comm::Reduction reduction)
      : communicator_(std::move(communicator)),
        memory_(std::move(memory)),
        rank_(place.rank),
        size_(place.size),
        reduction_(reduction) {}

  /// Runs a collective operation. Each rank reduces one slice, in the order of comm/tree_order.h,
  /// which is independent of the ranks; with Reduction::fast, NCCL's own algorithm reduces.
  void run(const comm::Operation& operation, const base::Deadline& deadline) const;

 private:
  /// The data that a rank sends to one peer and receives from it. Units: bytes.
  struct PeerTransfer {
    const std::byte* send = nullptr;
    std::size_t send_bytes = 0;
    std::byte* recv = nullptr;
    std::size_t recv_bytes = 0;
  };

  void execute(const comm::AllReduce& call, const base::Deadline& deadline) const;
  void execute(const comm::ReduceScatter& call, const base::Deadline& deadline) const;
  void execute(const comm::AllGather& call, const base::Deadline& deadline) const;
  void execute(const comm::AllToAll& call, const base::Deadline& deadline) const;
  void execute(const comm::Broadcast& call, const base::Deadline& deadline) const;
  void tree_all_reduce(const comm::AllReduce& call, const base::Deadline& deadline) const;
  void gather_equal(const at::Tensor& input, const at::Tensor& output,
                    const base::Deadline& deadline) const;
  /// peers: by rank; the entry of this rank is copied locally, unless source and target are equal.
  void exchange(const std::vector<PeerTransfer>& peers, const base::Deadline& deadline) const;
  /// Registers an arena's memory, so that NCCL uses it in place.
  void register_memory(const at::Tensor& tensor, const base::Deadline& deadline) const {
    memory_->segments().register_with(communicator_, tensor.const_data_ptr(), deadline);
  }

  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<RegisteredMemory> memory_;
  std::int64_t rank_;
  std::int64_t size_;
  comm::Reduction reduction_;
};

}  // namespace dtrain::cuda
