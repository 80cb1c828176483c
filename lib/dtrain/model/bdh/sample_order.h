// The order in which samples add to gradients, whichever threads compute them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace dtrain::model::bdh {

/// Several gradients, to each of which samples add one after the other, so that their sums have the
/// same bits on any number of threads.
///
/// Threads: any; one for each sample of a gradient.
class SampleOrder {
 public:
  explicit SampleOrder(std::int64_t num_gradients)
      : added_(static_cast<std::size_t>(num_gradients)) {}

  /// Waits until all samples before this one have added to the gradient. REQUIRES: threads compute
  /// them. Returns at once when one of them has failed: nobody will read the sum.
  void wait(std::int64_t gradient, std::int64_t sample) const {
    constexpr auto kSpin = std::chrono::microseconds(1);
    const std::atomic<std::int64_t>& added = added_[static_cast<std::size_t>(gradient)];
    const auto begin = std::chrono::steady_clock::now();
    while (added.load(std::memory_order_acquire) < sample && !has_failed_.load()) {
      if (std::chrono::steady_clock::now() - begin > kSpin) std::this_thread::yield();
    }
  }
  /// The sample has added all it has.
  void pass_on(std::int64_t gradient, std::int64_t sample) {
    added_[static_cast<std::size_t>(gradient)].store(sample + 1, std::memory_order_release);
  }
  /// A sample will not add.
  void fail() { has_failed_ = true; }

 private:
  std::vector<std::atomic<std::int64_t>> added_;  // samples of each gradient
  std::atomic<bool> has_failed_ = false;
};

}  // namespace dtrain::model::bdh
