// Runs blocks as a BlockRunner does, from the second step on as graphs of the device.
#pragma once

#include <memory>

#include "dtrain/parallel/engine/internal/block_runner.h"

namespace dtrain::parallel {

/// Gives memory of `allocate`, and keeps what is given back for the next one of the same size: the
/// first that is free. So equal orders of taking and giving back lead to equal addresses.
///
/// Threads: one, whose stream orders what was done with memory before what is done next.
[[nodiscard]] param::ArenaAllocator with_fixed_places(param::ArenaAllocator allocate);

/// The training passes of a runner: the first step runs as it is, the second one records a graph
/// for each forward and backward of a block and runs it, later ones run the graphs. Steps of
/// another shape begin anew.
///
/// What differs from step to step lies in tensors that stay: tokens, first samples, and the
/// gradient of the losses. Gradients of parameters are added to theirs after a block's graph, so
/// that whatever communicates does so between two graphs.
///
/// parameters: what blocks compute with; they must lie at the same places whenever a block runs.
/// None of the blocks has a native backward. `runner`, `model`, `parameters` and `recompute` must
/// outlive this.
///
/// Throws:  as device::make_recorder.
/// Threads: one.
[[nodiscard]] std::unique_ptr<PassRunner> make_graph_runner(BlockRunner& runner,
                                                            const model::Model& model,
                                                            const param::ParameterViews& parameters,
                                                            const RecomputePlan& recompute,
                                                            c10::Device device);

}  // namespace dtrain::parallel
