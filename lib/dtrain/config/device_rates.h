// FLOP/s and memory bandwidth of a device, by which --attention auto chooses.
#pragma once

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Only their ratios decide.
struct DeviceRates {
  double products = 0;       ///< FLOP/s of matrix products of the dtype that is computed with
  double wide_products = 0;  ///< of those that float16 leaves to float32
  double bytes = 0;          ///< that its memory moves
};

/// An H100's rates for the machine's dtype. They are given, not measured, and the same for every
/// device: so all ranks choose alike, and a run that resumes on another GPU as before. The ratios of
/// other GPUs are within a factor of two, which moves the time of the choice by a few percent.
[[nodiscard]] DeviceRates device_rates(const MachineConfig& machine);

}  // namespace dtrain::config
