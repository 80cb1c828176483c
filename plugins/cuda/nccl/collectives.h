// The collective operations of a group, put on its stream.
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

/// Puts operations on the current stream, where their scratch memory comes from, too.
///
/// Throws: TransportFailure; c10::Error.
class Collectives {
 public:
  /// memory: from which arenas come; null in a group of one, as the communicator.
  Collectives(std::shared_ptr<Communicator> communicator, std::shared_ptr<RegisteredMemory> memory,
              CommunicatorRank place, comm::Reduction reduction)
      : communicator_(std::move(communicator)),
        memory_(std::move(memory)),
        rank_(place.rank),
        size_(place.size),
        reduction_(reduction) {}

  /// Sums are added in the order of comm/tree_order.h, whatever the ranks are, each rank reducing a
  /// slice; with Reduction::fast by NCCL's own algorithm. operation: a collective one.
  void run(const comm::Operation& operation, const base::Deadline& deadline) const;

 private:
  /// What a rank gives one peer, and gets from it. Units: bytes.
  struct Swap {
    const std::byte* give = nullptr;
    std::size_t give_bytes = 0;
    std::byte* take = nullptr;
    std::size_t take_bytes = 0;
  };

  void execute(const comm::AllReduce& call, const base::Deadline& deadline) const;
  void execute(const comm::ReduceScatter& call, const base::Deadline& deadline) const;
  void execute(const comm::AllGather& call, const base::Deadline& deadline) const;
  void execute(const comm::AllToAll& call, const base::Deadline& deadline) const;
  void execute(const comm::Broadcast& call, const base::Deadline& deadline) const;
  void tree_all_reduce(const comm::AllReduce& call, const base::Deadline& deadline) const;
  void gather_equal(const at::Tensor& input, const at::Tensor& output,
                    const base::Deadline& deadline) const;
  /// peers: by rank; with itself a rank copies, unless both places are one.
  void exchange(const std::vector<Swap>& peers, const base::Deadline& deadline) const;
  /// NCCL may use an arena's memory in place from now on.
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
