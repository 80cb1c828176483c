// Limits how fast a checkpoint is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <stop_token>

#include "dtrain/base/clock.h"

namespace dtrain::checkpoint::store {

/// Ends a save quietly because its process is ending.
struct Abandoned {};

/// Holds a writer back to a rate, and ends it early when its process wants to end.
class Pace {
 public:
  /// bytes_per_second: 0 for as fast as it goes.
  /// hurry:            lifts the limit once it is true; must outlive this; may be null.
  explicit Pace(double bytes_per_second = 0, std::stop_token stop = {},
                const std::atomic<bool>* hurry = nullptr)
      : bytes_per_second_(bytes_per_second), stop_(std::move(stop)), hurry_(hurry) {}

  /// Returns when `bytes` more are due, counted from construction.
  ///
  /// Throws: Abandoned within 50 ms of a request to stop.
  void spend(std::int64_t bytes);

 private:
  double bytes_per_second_;
  std::stop_token stop_;
  const std::atomic<bool>* hurry_;
  std::int64_t spent_ = 0;
  base::Clock::time_point start_ = base::Clock::now();
};

}  // namespace dtrain::checkpoint::store
