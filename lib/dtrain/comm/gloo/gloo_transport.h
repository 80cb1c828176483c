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

  std::int64_t run(const Operation& operation, const base::Deadline& deadline) override;
  [[nodiscard]] std::int64_t awaited() const noexcept override { return link_->awaited(); }
  void close(const std::string& reason) noexcept override { link_->close(reason); }

 private:
  std::int64_t execute(const AllReduce& call, const base::Deadline& deadline);
  std::int64_t execute(const ReduceScatter& call, const base::Deadline& deadline);
  std::int64_t execute(const AllGather& call, const base::Deadline& deadline);
  std::int64_t execute(const AllToAll& call, const base::Deadline& deadline);
  std::int64_t execute(const Broadcast& call, const base::Deadline& deadline);
  std::int64_t execute(const Send& call, const base::Deadline& deadline);
  std::int64_t execute(const Recv& call, const base::Deadline& deadline);
  std::int64_t execute(const Barrier& call, const base::Deadline& deadline);

  /// Sends each peer the bytes sent(peer) and receives received(peer); returns the bytes sent.
  template <typename Sent, typename Received>
  std::int64_t exchange(Sent sent, Received received, const base::Deadline& deadline);

  std::unique_ptr<Link> link_;
  OrderedReducer reducer_;
  Reduction reduction_;
};

}  // namespace dtrain::comm
