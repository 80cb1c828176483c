// What the data axis of a rank holds, by arithmetic alone.
#pragma once

#include <cstdint>

#include "dtrain/parallel/data/data_axis.h"

namespace dtrain::parallel {

/// Units: bytes.
struct DataMemory {
  // Held always.
  std::int64_t parameters = 0;  ///< masters, and copies that stay gathered
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  // At the peak of a step, on top.
  std::int64_t gathered = 0;        ///< units whose parameters are there
  std::int64_t unit_gradients = 0;  ///< units that receive gradients or are being reduced
  std::int64_t converted = 0;       ///< copies that travel in another dtype, as activations go
  // Wherever it lies.
  std::int64_t state = 0;  ///< this rank's masters and optimizer state: what a checkpoint takes
};

/// moments: values that the optimizer keeps for each element.
[[nodiscard]] DataMemory data_memory(const param::ArenaLayout& layout, const UnitSchedule& schedule,
                                     const DataAxisOptions& options, std::int64_t moments);

}  // namespace dtrain::parallel
