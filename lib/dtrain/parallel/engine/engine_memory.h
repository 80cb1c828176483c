// Predicts the memory of a StepEngine.
#pragma once

#include <cstdint>

#include "dtrain/parallel/data/data_memory.h"
#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/plan/activation_memory.h"

namespace dtrain::parallel {

/// Units: bytes of one rank.
struct EngineMemory {
  DataMemory data;
  ActivationMemory activations;
  std::int64_t buffers = 0;  ///< constant tables, and the microbatch's tokens
};

/// microbatch: of a rank, in options.precision.compute.
[[nodiscard]] EngineMemory engine_memory(const model::Model& model, const EngineOptions& options,
                                         const model::BatchShape& microbatch);

}  // namespace dtrain::parallel
