// Runs blocks as a BlockRunner does, from the second step on as graphs of the device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/device/graph.h"
#include "dtrain/parallel/engine/block_runner.h"

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
/// Threads: one.
class GraphRunner final : public PassRunner {
 public:
  /// parameters: what blocks compute with; they must lie at the same places whenever a block runs.
  /// None of the blocks has a native backward. `runner`, `model`, `parameters` and `recompute` must
  /// outlive this.
  ///
  /// Throws:  as device::make_recorder.
  GraphRunner(BlockRunner& runner, const model::Model& model,
              const param::ParameterViews& parameters, const RecomputePlan& recompute,
              c10::Device device);

  // Every step has the same passes in the same order.
  void begin(MicrobatchId microbatch, const MicrobatchInput& input) override;
  void end(MicrobatchId microbatch) override { runner_.end(microbatch); }
  at::Tensor forward(BlockId block, MicrobatchId microbatch) override;
  void backward(BlockId block, MicrobatchId microbatch, double seed,
                const OnSettled& on_settled) override;

 private:
  enum class Phase { warm_up, recording, replaying };
  using Key = std::pair<BlockId, MicrobatchId>;
  // Where a pass's parameters lie.
  using Places = std::vector<const void*>;

  struct Forward {
    std::unique_ptr<device::Graph> graph;
    Places places;
    at::Tensor losses;
  };
  struct Backward {
    std::unique_ptr<device::Graph> graph;
    Places places;
    std::vector<GivenGradient> gradients;
  };

  void begin_step(const MicrobatchInput& input);
  void record(BlockId block, MicrobatchId microbatch, Forward& pass);
  void record(BlockId block, MicrobatchId microbatch, double seed, Backward& pass);
  [[nodiscard]] Places places_of(model::BlockRange blocks) const;
  [[nodiscard]] model::BlockRange blocks_of_backward(BlockId block) const;

  BlockRunner& runner_;
  const model::Model& model_;
  const param::ParameterViews& parameters_;
  const RecomputePlan& recompute_;
  c10::Device device_;
  Phase phase_ = Phase::warm_up;
  std::vector<std::int64_t> shape_;  // (B, T) of the step's microbatches
  // What passes of the shape share.
  std::unique_ptr<device::GraphRecorder> recorder_;
  std::map<MicrobatchId, MicrobatchInput> inputs_;
  at::Tensor loss_gradient_;  // as the losses
  std::map<Key, Forward> forwards_;
  std::map<Key, Backward> backwards_;
};

}  // namespace dtrain::parallel
