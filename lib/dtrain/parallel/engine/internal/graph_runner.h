// Runs block passes as device graphs, recorded in the second step.
#pragma once

#include <memory>

#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/engine/internal/block_runner.h"
#include "dtrain/parallel/engine/internal/gradient_accumulator.h"

namespace dtrain::parallel {

/// Returns an allocator that caches released memory by size and reuses the first free slot, so
/// equal sequences of allocations and releases return equal addresses.
///
/// Threads: one, whose stream orders old uses of memory before new ones.
[[nodiscard]] param::ArenaAllocator with_stable_addresses(param::ArenaAllocator allocate);

/// Makes a runner for training passes. The first step runs eagerly, the second step records a graph
/// of each forward and backward pass of a block, and later steps replay the graphs. After a change
/// of the input shape, this begins again.
///
/// Values that change between steps are copied into static tensors: tokens, first samples and the
/// gradient of the losses. Parameter gradients are added to `gradients` after a block's graph, so
/// all communication happens between graphs.
///
/// gradients: the accumulator of `runner`. parameters: the values that blocks read; whenever a block
/// runs, they must be at the same addresses. Blocks must not have a native backward. All arguments
/// must outlive the result.
///
/// Throws:  as device::make_recorder.
/// Threads: one.
[[nodiscard]] std::unique_ptr<PassRunner> make_graph_runner(BlockRunner& runner,
                                                            GradientAccumulator& gradients,
                                                            const param::ParameterViews& parameters,
                                                            const EngineSetup& setup);

}  // namespace dtrain::parallel
