// Collectives among ranks that see each other's memory. Private to comm/shm and comm/local.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/host/meeting.h"
#include "dtrain/comm/transport.h"

namespace dtrain::comm {

/// One rank's side of a group that meets through shared memory.
///
/// Tensors that the others can reach (all tensors, among threads; what World::allocate returned,
/// among processes) are read and written in place: a rank reduces its slice straight from all
/// ranks' tensors, in tree order, and writes the sum into all of them. Other tensors pass through a
/// staging area, chunk by chunk. Small ones travel within the control block, in one round.
///
/// Both reductions are the ordered one.
class ShmTransport final : public Transport {
 public:
  ShmTransport(Seat seat, std::shared_ptr<Neighbours> neighbours);
  ~ShmTransport() override;

  /// Returns the bytes of a rank's control block and staging areas.
  [[nodiscard]] static std::int64_t bytes(const GroupLoad& load);

  std::int64_t all_reduce(const at::Tensor& tensor, ReduceOp op,
                          const base::Deadline& deadline) override;
  std::int64_t reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                              const base::Deadline& deadline) override;
  std::int64_t all_gather(const at::Tensor& input, const PartedTensor& output,
                          const base::Deadline& deadline) override;
  std::int64_t all_to_all(const PartedTensor& input, const PartedTensor& output,
                          const base::Deadline& deadline) override;
  std::int64_t broadcast(const at::Tensor& tensor, std::int64_t root,
                         const base::Deadline& deadline) override;
  std::int64_t send(const at::Tensor& tensor, std::int64_t peer,
                    const base::Deadline& deadline) override;
  std::int64_t recv(const at::Tensor& tensor, std::int64_t peer,
                    const base::Deadline& deadline) override;
  std::int64_t barrier(const base::Deadline& deadline) override;
  [[nodiscard]] std::int64_t awaited() const noexcept override { return meeting_.awaited(); }
  void close(const std::string& reason) noexcept override { meeting_.close(reason); }

 private:
  /// The members' tensors of the call under way.
  struct Sources {
    std::vector<std::byte*> data;  ///< by rank: the tensor, or the staging area
    std::vector<bool> staged;      ///< by rank
    bool any_staged = false;

    /// Address of byte `offset` of rank's tensor; staging areas hold its part from `staged_from`
    /// on.
    [[nodiscard]] std::byte* at(std::int64_t rank, std::int64_t offset,
                                std::int64_t staged_from) const;
  };

  /// A call whose tensors are too large for the control block.
  struct LargeCall {
    CollectiveCall call;
    const at::Tensor& tensor;       ///< what the other ranks read, and perhaps write
    std::int64_t total = 0;         ///< to be worked through, in units of the caller's choice
    std::int64_t staged_count = 0;  ///< of these, as many as a staging area holds
    bool is_read = true;            ///< whether the others touch `tensor` at all
  };

  /// Works through the call: at once, or chunk by chunk if any rank's tensor has to be staged.
  /// stage(first, count) fills this rank's staging area; work(first, count) runs while everyone's
  /// chunk is laid out in sources_; fetch(first, count) takes the result from the staging area.
  template <typename Stage, typename Work, typename Fetch>
  void run(const LargeCall& large, const base::Deadline& deadline, Stage stage, Work work,
           Fetch fetch);
  /// Lays out where this rank's tensor is and finds where everyone's is, in sources_.
  void lay_out(const LargeCall& large, bool staged, const base::Deadline& deadline);
  [[nodiscard]] std::byte* staging();
  [[nodiscard]] std::byte* lane_staging(std::int64_t peer);

  std::int64_t all_reduce_large(const at::Tensor& tensor, ReduceOp op,
                                const base::Deadline& deadline);
  std::int64_t reduce_scatter_large(const at::Tensor& input, const at::Tensor& output,
                                    const base::Deadline& deadline);
  void gather_large(const CollectiveCall& call, const at::Tensor& input, const PartedTensor& output,
                    const base::Deadline& deadline);
  void broadcast_large(const at::Tensor& tensor, std::int64_t root, const base::Deadline& deadline);
  /// Sums elements of a chunk and writes them into everyone's tensor.
  void reduce_and_spread(std::int64_t chunk_begin, std::int64_t begin, std::int64_t end,
                         const CollectiveCall& call);

  /// Runs `body`; after a failure the tensors stay, since peers may still be at work on them.
  template <typename Body>
  std::int64_t guarded(std::initializer_list<at::Tensor> tensors, Body body);

  Meeting meeting_;
  // Of the collective call under way; kept, so that calls allocate nothing.
  Sources sources_;
  std::vector<const std::byte*> inputs_;
  std::shared_ptr<std::byte> staging_;                    // staging_bytes; made when first needed
  std::vector<std::shared_ptr<std::byte>> lane_staging_;  // by peer, used by the lane to it
};

}  // namespace dtrain::comm
