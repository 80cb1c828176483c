// Collectives over gloo messages. Private to comm/gloo.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "dtrain/comm/gloo/link.h"
#include "dtrain/comm/gloo/ordered_reduce.h"

namespace dtrain::comm {

/// A Transport over LibTorch's gloo. Reductions in tree order, gathers and broadcasts are direct
/// exchanges of messages, so that an error can name the peer; Reduction::fast leaves all_reduce to
/// gloo.
class GlooTransport final : public Transport {
 public:
  GlooTransport(std::unique_ptr<Link> link, Reduction reduction)
      : link_(std::move(link)), reducer_(*link_), reduction_(reduction) {}

  /// Returns the bytes of a rank's scratch memory.
  [[nodiscard]] static std::int64_t bytes(const GroupLoad& load) {
    return OrderedReducer::scratch_bytes(load.size, load.reduced);
  }

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
  [[nodiscard]] std::int64_t awaited() const noexcept override { return link_->awaited(); }
  void close(const std::string& reason) noexcept override { link_->close(reason); }

 private:
  /// Sends each peer the bytes sent(peer) and receives received(peer); returns the bytes sent.
  template <typename Sent, typename Received>
  std::int64_t exchange(Sent sent, Received received, const base::Deadline& deadline);

  std::unique_ptr<Link> link_;
  OrderedReducer reducer_;
  Reduction reduction_;
};

}  // namespace dtrain::comm
