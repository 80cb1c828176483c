// How fast this machine computes and communicates, measured by short runs.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "dtrain/config/config.h"

namespace dtrain::planner {

/// Times of one rank that holds the whole model, or its part on a tensor axis.
///
/// Units: seconds.
struct ComputeTimes {
  double pass = 0;    ///< forward and backward of one microbatch
  double update = 0;  ///< norm, clipping and optimizer
};

/// Time of a collective of two ranks = latency + bytes / bytes_per_second.
struct LinkRate {
  double latency = 0;           ///< seconds
  double bytes_per_second = 0;  ///< 0: free
};

/// Runs the engine itself on made-up tokens, as one rank of those that share a tensor axis; the
/// others are silent (comm/silent). Remembers what it has measured.
///
/// Threads: one; sets the number of LibTorch's threads.
class MachineRates {
 public:
  /// config: resolved; its layout counts only by the size of its tensor axis. Takes a few steps.
  [[nodiscard]] const ComputeTimes& compute(const config::Config& config);
  /// Between two ranks of this machine, of which each has a core.
  [[nodiscard]] const LinkRate& link();

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // microbatch, threads, tp
  std::map<Key, ComputeTimes> compute_;
  LinkRate link_;
};

}  // namespace dtrain::planner
