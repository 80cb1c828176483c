// Measures this machine's compute and communication rates by short runs, and its available memory.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <tuple>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/config.h"

namespace dtrain::planner {

/// Compute times of one rank that holds the whole model, or its tensor-parallel slice of it.
///
/// Units: seconds.
struct ComputeTimes {
  double pass = 0;    ///< forward and backward of one microbatch
  double update = 0;  ///< norm, clipping and optimizer
};

/// Cost model of a collective: latency + bytes sent per rank / bytes_per_second.
struct LinkRate {
  double latency = 0;           ///< seconds
  double bytes_per_second = 0;  ///< 0: free
};

/// Measures the link by all-reduces over `group`.
///
/// Collective: every rank of `group`.
[[nodiscard]] LinkRate measure_link(comm::ProcessGroup& group);

/// Returns the bytes that a rank sends in a ring all-reduce, divided by the tensor's bytes.
[[nodiscard]] double ring_share(std::int64_t ranks);

/// Limits on tensor memory, in bytes.
struct MemoryLimits {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  std::int64_t rank = kNone;     ///< per rank
  std::int64_t machine = kNone;  ///< per machine, including the processes themselves

  /// True if the machine's limit is tighter than the rank limit for `ranks` ranks on it.
  [[nodiscard]] bool is_shared(std::int64_t ranks) const;
  /// Returns the limit of each of `ranks` ranks on a machine.
  [[nodiscard]] std::int64_t of_rank(std::int64_t ranks) const;
};

/// Returns the memory that is available now on this machine and in its control groups, in bytes.
/// Call before measurements: memory that they use in this process is not available.
[[nodiscard]] std::int64_t available_memory();

/// A single-rank or tensor-parallel job that is timed instead of another job, with factors that
/// scale its times.
struct TimedJob {
  config::Config config;
  double pass_factor = 1;    ///< pass time of the other job over this one's
  double update_factor = 1;  ///< update time of the other job over this one's
};

/// Returns the job to time for `config`: the same model with the tensor axis only, and without
/// --memory-limit and recomputation, which predict() adds. If the model has more than `most_layers`
/// layers or does not fit in `memory` bytes, layers are removed, and with them --freeze and
/// --no-decay; the factors are then ratios of FLOPs and of parameters.
///
/// Throws: Error{usage} if even one layer does not fit; as parallel::rank_plan.
[[nodiscard]] TimedJob timed_job(const config::Config& config, std::int64_t memory,
                                 std::int64_t most_layers);

/// Measures by running the engine on synthetic tokens, as one tensor-parallel rank whose peers are
/// simulated (comm/local). Caches its measurements.
///
/// Threads: one; sets the number of LibTorch's threads.
class MachineRates {
 public:
  MachineRates() = default;
  /// link: the rate already measured between the job's ranks.
  explicit MachineRates(const LinkRate& link) : link_(link) {}

  /// Measures compute times by running a few steps or, for a large model, one step with fewer
  /// layers. If the time of half the microbatch is known and at least half a second, returns twice
  /// that time instead. config: resolved; of its layout only tp is used.
  [[nodiscard]] const ComputeTimes& compute(const config::Config& config);
  /// Returns the link passed to the constructor, or measures it between two threads of this
  /// machine.
  [[nodiscard]] const LinkRate& link();

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // microbatch, threads, tp
  std::map<Key, ComputeTimes> compute_;
  LinkRate link_;
};

}  // namespace dtrain::planner
