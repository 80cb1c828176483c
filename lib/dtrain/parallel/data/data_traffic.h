// What the data axis of a rank gathers and reduces in a step, by arithmetic alone.
#pragma once

#include <cstdint>

#include "dtrain/parallel/data/data_axis.h"

namespace dtrain::parallel {

/// Of the units of a training step over one group of shards; all zero where nothing is sharded.
/// Units: calls, and bytes that each rank sends in a ring.
struct DataTraffic {
  std::int64_t gathers = 0;
  std::int64_t gather_bytes = 0;
  std::int64_t reductions = 0;
  std::int64_t reduction_bytes = 0;
  std::int64_t max_gathered = 0;  ///< units there or under way at one time

  bool operator==(const DataTraffic&) const = default;
};

/// Sums over replicas, the norm and the loss come on top.
[[nodiscard]] DataTraffic data_traffic(const param::ArenaLayout& layout,
                                       const UnitSchedule& schedule,
                                       const DataAxisOptions& options);

}  // namespace dtrain::parallel
