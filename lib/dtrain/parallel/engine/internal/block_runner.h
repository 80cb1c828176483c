// Runs single blocks forward and backward, each with its own autograd graph, and counts parameter
// uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/action.h"
#include "dtrain/parallel/memory.h"
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
  using OnGradientReady = std::function<void(param::ParameterId)>;

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
  virtual void backward(BlockId block, MicrobatchId microbatch, double seed,
                        const OnGradientReady& on_gradient_ready) = 0;
};

/// The gradient of a parameter from one of its uses in a block.
struct ParameterGradient {
  param::ParameterId id;
  at::Tensor value = {};  ///< in storage shape; undefined: no gradient
  bool is_last = true;    ///< last use in this block
};

using BlockMemories = base::IndexedVector<BlockId, model::BlockMemory>;

/// Blocks whose input comes from another pipeline stage.
struct ReceivedInputs {
  std::vector<BlockId> blocks = {};
  std::int64_t bytes = 0;  ///< per input
};

/// Runs blocks on detached inputs and saves each block's autograd graph, or the tensors of its
/// native backward, until its backward pass. Recomputed blocks save only their group's input
/// (RecomputeGroup); their graphs are built right before the backward pass.
///
/// Calls `on_gradient_ready` once per parameter and microbatch, when the last block that lists the
/// parameter has added its gradient. If backward passes of several microbatches alternate
/// (Options::interleaved_microbatches), it is called once for all of them.
///
/// On a pipeline stage, the set_ functions take activations and gradients from other stages, and
/// the take_ functions return those for other stages.
///
/// The losses share no memory with the runner.
class BlockRunner final : public PassRunner, private param::GradientSink {
 public:
  using OnGradient = std::function<void(const ParameterGradient&)>;

  struct Options {
    std::uint64_t seed = 0;
    at::ScalarType buffer_dtype = at::kFloat;  ///< dtype of the model's constant tables
    std::vector<param::ParameterId> frozen;    ///< parameters without gradients
    RecomputePlan recompute = {};
    std::int64_t interleaved_microbatches = 1;  ///< microbatches that share a gradient sum
  };

  /// parameters: the values that blocks read; axis: the axis that the model was made for. `model`,
  /// `gradients` and `axis` must outlive this.
  BlockRunner(model::Model& model, const param::ParameterViews& parameters,
              param::GradientMemory& gradients, model::TensorAxis& axis, Options options);

  /// Predicts a runner's memory in a step: saved activations, and temporaries at the peak. blocks:
  /// memory of each block; actions: the step's actions.
  [[nodiscard]] static MemoryPlan memory(const BlockMemories& blocks,
                                         std::span<const Action> actions,
                                         const RecomputePlan& recompute,
                                         const ReceivedInputs& received = {});

  /// Selects training (the default), with dropout and graphs, or evaluation, without both.
  void set_training(bool training) { training_ = training; }

  void begin(MicrobatchId microbatch, const MicrobatchInput& input) override;
  void end(MicrobatchId microbatch) override { microbatches_.erase(microbatch); }
  at::Tensor forward(BlockId block, MicrobatchId microbatch) override;

  /// Sets the input of the microbatch's next block, received from another stage.
  void set_activation(MicrobatchId microbatch, at::Tensor activation) {
    microbatches_.at(microbatch).activation = std::move(activation);
  }
  /// Moves out the output of the last block that ran.
  [[nodiscard]] at::Tensor take_activation(MicrobatchId microbatch) {
    return std::exchange(microbatches_.at(microbatch).activation, at::Tensor());
  }
  /// Sets the output gradient of the next block to run backward; for the last block it replaces
  /// `seed`.
  void set_gradient(MicrobatchId microbatch, at::Tensor gradient) {
    microbatches_.at(microbatch).gradient = std::move(gradient);
  }
  /// Moves out the input gradient of the last block that ran backward.
  [[nodiscard]] at::Tensor take_gradient(MicrobatchId microbatch) {
    return std::exchange(microbatches_.at(microbatch).gradient, at::Tensor());
  }

  void backward(BlockId block, MicrobatchId microbatch, double seed,
                const OnGradientReady& on_gradient_ready) override;
  /// The two parts of backward(): compute() reports the parameters' gradients in order, and
  /// accumulate() adds one. Blocks with a native backward accumulate by themselves.
  void compute(BlockId block, MicrobatchId microbatch, double seed, const OnGradient& on_gradient);
  void accumulate(const ParameterGradient& gradient, const OnGradientReady& on_gradient_ready);

  void set_tap(model::Tap tap) { tap_ = std::move(tap); }

 private:
  // Tensors saved by one block for its backward pass.
  struct SavedBlock {
    at::Tensor input;
    at::Tensor output;                                // with a graph, unless the backward is native
    std::map<param::ParameterId, std::int64_t> uses;  // gradients still pending in the graph
    std::vector<at::Tensor> native;                   // saved for a native backward
  };
  struct Microbatch {
    MicrobatchInput input = {};
    at::Tensor activation = {};  // input of the next block
    at::Tensor gradient = {};    // output gradient of the previous block
    std::map<BlockId, SavedBlock> saved = {};
  };

  [[nodiscard]] bool computes_losses(BlockId block) const;
  [[nodiscard]] model::BlockContext context_of(const MicrobatchInput& input,
                                               const model::ParameterReader& use,
                                               const model::Tap& tap);
  // Runs the block on its saved input and saves what its backward pass needs.
  void record(BlockId block, Microbatch& entry, const model::Tap& tap);
  [[nodiscard]] at::Tensor run_without_graph(BlockId block, const at::Tensor& x,
                                             const MicrobatchInput& input, const model::Tap& tap);
  void recompute(BlockId block, Microbatch& entry);
  void add_gradient(param::ParameterId id, const at::Tensor& grad) override;

  model::Model& model_;
  param::ParameterViews leaves_;  // require grad unless frozen
  model::ParameterReader read_leaf_;
  param::GradientMemory& gradients_;
  std::uint64_t seed_;
  at::ScalarType buffer_dtype_;
  RecomputePlan recompute_;
  // Backward passes until each parameter's gradient is ready, and how many of them are pending.
  base::IndexedVector<param::ParameterId, std::int64_t> num_backwards_;
  base::IndexedVector<param::ParameterId, std::int64_t> pending_backwards_;
  std::map<MicrobatchId, Microbatch> microbatches_;
  model::TensorAxis& tensor_axis_;
  bool training_ = true;
  model::Tap tap_;
  model::Tap no_tap_;  // for recomputed blocks
  // State of the current backward pass.
  SavedBlock* active_block_ = nullptr;
  const OnGradient* on_gradient_ = nullptr;
};

}  // namespace dtrain::parallel
