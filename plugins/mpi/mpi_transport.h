// Implements Transport, the blocking operations of a process group, over MPI.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/queued_group.h"
#include "mpi/engine.h"

namespace dtrain::mpi {

/// Transport over one communicator. Ordered sums use MPI_Ialltoallv: each rank receives its slice
/// of every rank's tensor and adds these slices in tree order; then all ranks gather the sums. With
/// Reduction::fast, sums of float32, float64 and integers use MPI_Iallreduce; MPI lacks 16-bit
/// floats, and its maximum may drop NaNs.
///
/// After a failure the peers' calls block until mpirun, or their deadline, ends them.
class MpiTransport final : public comm::Transport {
 public:
  MpiTransport(std::shared_ptr<Engine> engine, MPI_Comm communicator, comm::Reduction reduction);

  std::int64_t run(const comm::Operation& operation, const base::Deadline& deadline) override;
  void close(const std::string& reason) noexcept override;

 private:
  /// One reduction; rank p owns slice p.
  struct Sum {
    const std::byte* input = nullptr;  ///< all slices, one after the other
    std::byte* output = nullptr;       ///< this rank's slice; may lie in `input`
    std::byte* results = nullptr;      ///< receives all slices' sums; null: discarded
    at::ScalarType dtype = at::ScalarType::Float;
    comm::ReduceOp op = comm::ReduceOp::sum;
    std::vector<std::int64_t> begins = {};  ///< slice boundaries in elements, including the end
  };
  /// The part of every slice that is exchanged in one round. Units: bytes, by rank.
  struct Round {
    std::vector<std::int64_t> offsets;  ///< in the tensor
    std::vector<int> counts;
    std::vector<int> places;  ///< in a staging area
  };

  std::int64_t execute(const comm::AllReduce& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::ReduceScatter& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::AllGather& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::AllToAll& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::Broadcast& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::Send& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::Recv& call, const base::Deadline& deadline);
  std::int64_t execute(const comm::Barrier& call, const base::Deadline& deadline);
  /// Sends each peer sent(peer) and receives received(peer).
  template <typename Sent, typename Received>
  void exchange(Sent sent, Received received, const base::Deadline& deadline);
  std::int64_t add_in_order(const Sum& sum, const base::Deadline& deadline);
  void add_round(const Sum& sum, const Round& round, const base::Deadline& deadline);
  void gather_round(const Sum& sum, const Round& round, const base::Deadline& deadline);
  [[nodiscard]] Round round_at(const Sum& sum, std::int64_t offset, std::int64_t length) const;
  std::byte* sent();
  std::byte* received();
  [[nodiscard]] std::size_t rank_index() const { return static_cast<std::size_t>(rank_); }

  std::shared_ptr<Engine> engine_;
  MPI_Comm communicator_;
  comm::Reduction reduction_;
  int rank_ = 0;
  int size_ = 1;
  at::Tensor staging_ = {};  ///< send and receive areas; allocated by the first reduction
  std::atomic<bool> closed_{false};
};

}  // namespace dtrain::mpi
