// Ranks that see each other's memory: threads of one process, or processes that map each other's
// segments. Private to comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
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
  /// Zeroed memory of this rank that the others can reach; at least one byte.
  [[nodiscard]] virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;
  /// Returns whether that rank's process has ended or let go of the job.
  [[nodiscard]] virtual bool is_gone(std::int64_t rank) const = 0;

  /// After a failure: others may still be at work on this memory, so it must not be used again.
  void keep(std::shared_ptr<void> memory) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace dtrain::comm
