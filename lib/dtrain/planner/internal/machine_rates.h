// How fast this machine computes and communicates, measured by short runs, and what memory it has.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <tuple>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/config.h"

namespace dtrain::planner {

/// Times of one rank that holds the whole model, or its part on a tensor axis.
///
/// Units: seconds.
struct ComputeTimes {
  double pass = 0;    ///< forward and backward of one microbatch
  double update = 0;  ///< norm, clipping and optimizer
};

/// Time of a collective = latency + bytes that a rank sends / bytes_per_second.
struct LinkRate {
  double latency = 0;           ///< seconds
  double bytes_per_second = 0;  ///< 0: free
};

/// Of all-reduces of `group`.
///
/// Collective: every rank of `group`.
[[nodiscard]] LinkRate measure_link(comm::ProcessGroup& group);

/// Bytes that a rank sends in a ring all-reduce, divided by the bytes of the tensor.
[[nodiscard]] double ring_share(std::int64_t ranks);

/// Bytes of tensors that ranks may take.
struct MemoryLimits {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  std::int64_t rank = kNone;     ///< of each
  std::int64_t machine = kNone;  ///< shared by those of a machine, programs included

  /// True if `ranks` of a machine are bound by what they share.
  [[nodiscard]] bool is_shared(std::int64_t ranks) const;
  /// Bytes that each of `ranks` on a machine may take.
  [[nodiscard]] std::int64_t of_rank(std::int64_t ranks) const;
};

/// Bytes that this machine and its control groups have left now. What was measured in this process
/// counts as taken, so read it before.
[[nodiscard]] std::int64_t available_memory();

/// A job of one rank, or of those that share a tensor axis, whose times stand for those of another.
struct TimedJob {
  config::Config config;
  double pass_factor = 1;    ///< of a pass of the other job to one of this
  double update_factor = 1;  ///< the same of updates
};

/// What is timed for `config`: the same model without other axes, without --memory-limit and
/// without layers that run again, which predict() adds. Of a model that has more than `max_layers`
/// or does not fit `memory` bytes it has fewer layers, and the factors are those of FLOPs and of
/// parameters.
///
/// Throws: Error{usage} if even one layer takes more; as parallel::rank_plan.
[[nodiscard]] TimedJob timed_job(const config::Config& config, std::int64_t memory,
                                 std::int64_t max_layers);

/// Runs the engine itself on made-up tokens, as one rank of those that share a tensor axis; the
/// others are silent (comm/local). Remembers what it has measured.
///
/// Threads: one; sets the number of LibTorch's threads.
class MachineRates {
 public:
  MachineRates() = default;
  /// link: as it was measured between the ranks themselves.
  explicit MachineRates(const LinkRate& link) : link_(link) {}

  /// config: resolved; its layout counts only by the size of its tensor axis. Takes a few steps, of
  /// a large model one of a few of its layers. What half the microbatch takes at least half a second
  /// for is not run: it takes twice as long.
  [[nodiscard]] const ComputeTimes& compute(const config::Config& config);
  /// Unless it was given, between two ranks of this machine, of which each has a core.
  [[nodiscard]] const LinkRate& link();

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // microbatch, threads, tp
  std::map<Key, ComputeTimes> compute_;
  LinkRate link_;
};

}  // namespace dtrain::planner
