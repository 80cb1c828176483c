// Measures the time and communication of the current step, excluding the work between steps.
#pragma once

#include <cstdint>

#include "dtrain/base/clock.h"
#include "dtrain/comm/call_ring.h"
#include "dtrain/mesh/mesh_groups.h"

namespace dtrain::train {

/// A stopwatch with one lap per step. Work outside of steps can be excluded from the next lap.
///
/// Threads: one.
class StepClock {
 public:
  /// Reads communication from the groups' counters; `groups` must outlive this.
  explicit StepClock(const mesh::MeshGroups& groups) : groups_(groups) {}

  /// One step of this rank.
  struct Lap {
    double seconds = 0;
    double wait_seconds = 0;  ///< time within `seconds` blocked in communication
    std::int64_t bytes_sent = 0;
    double total_wait_seconds = 0;  ///< time blocked since the groups were made
  };
  /// Ends the current step and starts the next one.
  [[nodiscard]] Lap lap();

  /// Restarts the current step: excludes everything since the last lap.
  void restart();
  /// Excludes the time since `begin`, and all communication since the last lap.
  void exclude_since(base::Clock::time_point begin);
  /// Excludes time without communication.
  void exclude(base::Clock::duration time) { step_start_ += time; }

 private:
  const mesh::MeshGroups& groups_;
  base::Clock::time_point step_start_ = base::Clock::now();
  comm::CallCounters counters_;  // all groups' counters at the last lap or exclusion
};

}  // namespace dtrain::train
