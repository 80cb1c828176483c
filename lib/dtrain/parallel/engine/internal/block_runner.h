// Runs single blocks forward and backward, each with its own autograd graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/action.h"
#include "dtrain/parallel/engine/internal/gradient_accumulator.h"
#include "dtrain/parallel/recompute.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::parallel {

/// Input of one microbatch.
struct MicrobatchInput {
  at::Tensor ids = {};           ///< (B, T) int64
  at::Tensor targets = {};       ///< (B, T) int64
  at::Tensor first_sample = {};  ///< () int64
};

/// Runs single blocks forward and backward, microbatch by microbatch.
///
/// Collective: forward() and backward(), over the tensor axis.
/// Threads:    one; backward passes run on the calling thread.
class PassRunner {
 public:
  virtual ~PassRunner() = default;

  /// Sets a microbatch's input.
  virtual void begin(MicrobatchId microbatch, const MicrobatchInput& input) = 0;
  /// Frees everything saved for the microbatch.
  virtual void end(MicrobatchId microbatch) = 0;
  /// Runs one block on the previous block's output. Returns the last block's per-token losses (B,
  /// T), valid until the next pass; undefined for other blocks.
  virtual at::Tensor forward(BlockId block, MicrobatchId microbatch) = 0;
  /// Runs the block's backward pass; first recomputes its group if needed. seed: gradient of each
  /// token's loss; used by the last block only.
  virtual void backward(BlockId block, MicrobatchId microbatch, double seed) = 0;
};

/// The tensors at the boundary between the blocks that ran and those that follow. Pipeline stages
/// exchange them.
struct BoundaryTensors {
  /// The next block's input: the token ids, then the output of the last block that ran forward.
  at::Tensor activation = {};
  /// Input gradient of the last block that ran backward: the output gradient of the next block to
  /// run backward. If defined, it replaces the seed of the last block.
  at::Tensor gradient = {};
};

/// Runs blocks on detached inputs and saves each block's autograd graph, or the tensors of its
/// native backward, until its backward pass. Recomputed blocks save only their group's input
/// (RecomputeGroup); their graphs are built right before the backward pass.
///
/// The losses share no memory with the runner.
class BlockRunner final : public PassRunner {
 public:
  using OnGradient = std::function<void(const ParameterGradient&)>;

  struct Options {
    std::uint64_t seed = 0;
    at::ScalarType buffer_dtype = at::kFloat;  ///< dtype of the model's constant tables
    std::vector<param::ParameterId> frozen;    ///< parameters without gradients
    RecomputePlan recompute = {};
  };

  /// parameters: the values that blocks read; axis: the axis that the model was made for. `model`,
  /// `gradients` and `axis` must outlive this.
  BlockRunner(model::Model& model, const param::ParameterViews& parameters,
              GradientAccumulator& gradients, model::TensorAxis& axis, Options options);

  /// Selects training (the default), with dropout and graphs, or evaluation, without both.
  void set_training(bool training) { training_ = training; }

  void begin(MicrobatchId microbatch, const MicrobatchInput& input) override;
  void end(MicrobatchId microbatch) override { microbatches_.erase(microbatch); }
  at::Tensor forward(BlockId block, MicrobatchId microbatch) override;

  /// Returns the tensors that the microbatch's next pass takes and its last pass left. A pipeline
  /// stage sets those from other stages and moves out those for other stages. Valid until end().
  [[nodiscard]] BoundaryTensors& boundary(MicrobatchId microbatch) {
    return microbatches_.at(microbatch).boundary;
  }

  /// Runs compute() and adds the gradients to the accumulator.
  void backward(BlockId block, MicrobatchId microbatch, double seed) override;
  /// Runs a backward pass that reports the gradients of the parameters' uses in order instead of
  /// adding them; those of blocks with a native backward have no value, because such blocks add
  /// them themselves.
  void compute(BlockId block, MicrobatchId microbatch, double seed, const OnGradient& on_gradient);

  void set_tap(model::Tap tap) { tap_ = std::move(tap); }

 private:
  // Tensors saved by one block for its backward pass; the sink of its graph's gradients.
  struct SavedBlock final : param::GradientSink {
    SavedBlock() = default;
    SavedBlock(const SavedBlock&) = delete;  // the graph refers to it
    SavedBlock& operator=(const SavedBlock&) = delete;

    void add_gradient(param::ParameterId id, const at::Tensor& grad) override;

    at::Tensor input;
    at::Tensor output;                                // with a graph, unless the backward is native
    std::map<param::ParameterId, std::int64_t> uses;  // gradients still pending in the graph
    std::vector<at::Tensor> native;                   // saved for a native backward
    const OnGradient* on_gradient = nullptr;          // set during the backward pass
  };
  struct Microbatch {
    MicrobatchInput input = {};
    BoundaryTensors boundary = {};
    std::map<BlockId, SavedBlock> saved = {};
  };

  [[nodiscard]] model::BlockContext context_of(const MicrobatchInput& input,
                                               const model::ParameterReader& use,
                                               const model::Tap& tap);
  // Runs the block on its saved input and saves what its backward pass needs.
  void record(BlockId block, Microbatch& entry, const model::Tap& tap);
  [[nodiscard]] at::Tensor run_without_graph(BlockId block, const at::Tensor& x,
                                             const MicrobatchInput& input, const model::Tap& tap);
  void recompute(BlockId block, Microbatch& entry);

  model::Model& model_;
  param::ParameterViews leaves_;  // require grad unless frozen
  model::ParameterReader read_leaf_;
  GradientAccumulator& gradients_;
  std::uint64_t seed_;
  at::ScalarType buffer_dtype_;
  RecomputePlan recompute_;
  std::map<MicrobatchId, Microbatch> microbatches_;
  model::TensorAxis& tensor_axis_;
  bool training_ = true;
  model::Tap tap_;
  model::Tap no_tap_;  // for recomputed blocks
};

}  // namespace dtrain::parallel
