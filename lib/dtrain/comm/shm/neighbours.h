// Ranks that see each other's memory: threads of one process, or processes that map each other's
// segments. Private to comm/shm.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace dtrain::comm {

/// The memory of all ranks of a host as one of them sees it. Ranks are world ranks.
///
/// Threads: any.
class Neighbours {
 public:
  virtual ~Neighbours() = default;

  [[nodiscard]] virtual std::int64_t num_ranks() const = 0;
  /// Where `rank`'s memory begins in this process.
  [[nodiscard]] virtual std::uintptr_t base(std::int64_t rank) const = 0;
  /// Returns whether the others can reach these bytes of this rank.
  [[nodiscard]] virtual bool reachable(const std::byte* data, std::int64_t bytes) const = 0;
  /// Memory of this rank that the others can reach: (bytes) uint8, zeroed.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t bytes) = 0;
  /// Returns whether that rank's process has ended or let go of the job.
  [[nodiscard]] virtual bool is_gone(std::int64_t rank) const = 0;

  /// After a failure: others may still be at work on this memory, so it must not be used again.
  void keep(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(tensor);
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> kept_;
};

/// Threads of one process see all memory at the same addresses.
class ThreadNeighbours final : public Neighbours {
 public:
  explicit ThreadNeighbours(std::int64_t num_ranks) : num_ranks_(num_ranks) {}

  [[nodiscard]] std::int64_t num_ranks() const override { return num_ranks_; }
  [[nodiscard]] std::uintptr_t base(std::int64_t) const override { return 0; }
  [[nodiscard]] bool reachable(const std::byte*, std::int64_t) const override { return true; }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return at::zeros({bytes}, at::kByte);
  }
  [[nodiscard]] bool is_gone(std::int64_t) const override { return false; }

 private:
  std::int64_t num_ranks_;
};

}  // namespace dtrain::comm
