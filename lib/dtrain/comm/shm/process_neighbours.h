// Processes of one host that map each other's memory. Private to comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/comm/shm/introduction.h"
#include "dtrain/comm/shm/neighbours.h"
#include "dtrain/comm/shm/segment.h"

namespace dtrain::comm {

/// Processes that map each other's segments; ranks on other hosts have neither connection nor
/// memory.
class ProcessNeighbours final : public Neighbours {
 public:
  ProcessNeighbours(std::int64_t own_rank, std::shared_ptr<Segment> segment,
                    std::vector<PeerConnection> peers)
      : own_rank_(own_rank), segment_(std::move(segment)), mappings_(peers.size()) {
    for (std::size_t peer = 0; peer < peers.size(); ++peer) {
      connections_.push_back(std::move(peers[peer].connection));
      if (connections_.back().get() >= 0) {
        ++num_ranks_;
        mappings_[peer] = std::make_unique<Mapping>(peers[peer].memory);
      }
    }
  }

  [[nodiscard]] Segment& segment() const { return *segment_; }
  [[nodiscard]] std::int64_t num_ranks() const override { return num_ranks_; }
  [[nodiscard]] std::uintptr_t base(std::int64_t rank) const override {
    const std::byte* data =
        is_own(rank) ? segment_->data() : mappings_[static_cast<std::size_t>(rank)]->data();
    return reinterpret_cast<std::uintptr_t>(data);
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t rank) const {
    return is_own(rank) ? segment_->bytes() : mappings_[static_cast<std::size_t>(rank)]->bytes();
  }
  [[nodiscard]] bool reachable(const std::byte* data, std::int64_t bytes) const override {
    const auto begin = reinterpret_cast<std::uintptr_t>(segment_->data());
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - begin;  // huge if below
    return offset < static_cast<std::uintptr_t>(segment_->bytes()) &&
           static_cast<std::uintptr_t>(bytes) <=
               static_cast<std::uintptr_t>(segment_->bytes()) - offset;
  }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return segment_->allocate(bytes);
  }
  [[nodiscard]] bool is_gone(std::int64_t rank) const override {
    return !is_own(rank) && has_hung_up(connections_[static_cast<std::size_t>(rank)]);
  }

 private:
  [[nodiscard]] bool is_own(std::int64_t rank) const { return rank == own_rank_; }

  std::int64_t own_rank_;
  std::int64_t num_ranks_ = 1;
  std::shared_ptr<Segment> segment_;
  std::vector<std::unique_ptr<Mapping>>
      mappings_;                               // by rank; null for the own and for other hosts'
  std::vector<base::Descriptor> connections_;  // by rank
};

}  // namespace dtrain::comm
