// Runs single blocks forward and backward, each with a small graph of its own, and counts parameter
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

/// A microbatch as its blocks see it.
struct MicrobatchInput {
  at::Tensor ids = {};           ///< (B, T) int64
  at::Tensor targets = {};       ///< (B, T) int64
  at::Tensor first_sample = {};  ///< () int64
};

/// Runs single blocks forward and backward, microbatch by microbatch.
///
/// Collective: over the tensor axis, every forward and backward.
/// Threads:    one; backward passes run on the calling thread.
class PassRunner {
 public:
  using OnSettled = std::function<void(param::ParameterId)>;

  virtual ~PassRunner() = default;

  /// Gives a microbatch its tokens.
  virtual void begin(MicrobatchId microbatch, const MicrobatchInput& input) = 0;
  /// Forgets it.
  virtual void end(MicrobatchId microbatch) = 0;
  /// Runs one block on what the block before it gave; the last block's per-token losses (B, T) are
  /// returned, valid until the next pass, else an undefined tensor.
  virtual at::Tensor forward(BlockId block, MicrobatchId microbatch) = 0;
  /// Runs the block's backward. Where recomputed blocks run again for it, they are this one and
  /// those below it in its group. seed: the gradient of each token's loss, read for the last block.
  virtual void backward(BlockId block, MicrobatchId microbatch, double seed,
                        const OnSettled& on_settled) = 0;
};

/// What a block's backward gives for a parameter.
struct GivenGradient {
  param::ParameterId id;
  at::Tensor value = {};  ///< in the parameter's storage shape; undefined: none
  bool is_last = true;    ///< of this block
};

using BlockMemories = base::IndexedVector<BlockId, model::BlockMemory>;

/// Blocks whose input another stage of a pipeline sends.
struct ReceivedInputs {
  std::vector<BlockId> blocks = {};
  std::int64_t bytes = 0;  ///< of one input
};

/// Runs blocks on detached inputs and keeps each one's graph, or what its native backward reads,
/// until its backward; of blocks that are recomputed it keeps the input alone (RecomputeGroup) and
/// makes the graph right before the backward.
///
/// A parameter is settled for a microbatch when every block that lists it has had its backward, or
/// the last of the block's recorded uses has given its gradient: then `on_settled` is called, once
/// for each microbatch, whose backward passes come one microbatch after the other. Where they are
/// mixed (Options::settled_together) it is called once for all of them.
///
/// On a stage of a pipeline what other stages compute is set and taken: the input of a block that
/// another stage's output goes to, and so on.
///
/// Losses stay as long as their tensor.
class BlockRunner final : public PassRunner, private param::GradientSink {
 public:
  using OnGradient = std::function<void(const GivenGradient&)>;

  struct Options {
    std::uint64_t seed = 0;
    at::ScalarType buffer_dtype = at::kFloat;  ///< of the model's constant tables
    std::vector<param::ParameterId> frozen;    ///< get no gradient
    RecomputePlan recompute = {};
    std::int64_t settled_together = 1;  ///< microbatches whose gradients are summed as they come
  };

  /// parameters: what blocks compute with; axis: the one that the model was made for. `model`,
  /// `gradients` and `axis` must outlive this.
  BlockRunner(model::Model& model, const param::ParameterViews& parameters,
              param::GradientMemory& gradients, model::TensorAxis& axis, Options options);

  /// The memory that a runner holds in a step: what it keeps from forward to backward, and
  /// work on top at the peak. blocks: of each block; actions: of the step.
  [[nodiscard]] static MemoryPlan memory(const BlockMemories& blocks,
                                         std::span<const Action> actions,
                                         const RecomputePlan& recompute,
                                         const ReceivedInputs& received = {});

  /// Forward passes train, with dropout and graphs, or evaluate, with neither; they train at first.
  void set_training(bool training) { training_ = training; }

  void begin(MicrobatchId microbatch, const MicrobatchInput& input) override;
  void end(MicrobatchId microbatch) override { microbatches_.erase(microbatch); }
  at::Tensor forward(BlockId block, MicrobatchId microbatch) override;

  /// Sets the input of the microbatch's next block, from another stage.
  void set_activation(MicrobatchId microbatch, at::Tensor activation) {
    microbatches_.at(microbatch).activation = std::move(activation);
  }
  /// Takes the output of the block that ran last.
  [[nodiscard]] at::Tensor take_activation(MicrobatchId microbatch) {
    return std::exchange(microbatches_.at(microbatch).activation, at::Tensor());
  }
  /// Sets the gradient of the output of the block that runs backward next; of the last block's it
  /// takes the place of `seed`.
  void set_gradient(MicrobatchId microbatch, at::Tensor gradient) {
    microbatches_.at(microbatch).gradient = std::move(gradient);
  }
  /// Takes the gradient of the input of the block that ran backward last.
  [[nodiscard]] at::Tensor take_gradient(MicrobatchId microbatch) {
    return std::exchange(microbatches_.at(microbatch).gradient, at::Tensor());
  }

  void backward(BlockId block, MicrobatchId microbatch, double seed,
                const OnSettled& on_settled) override;
  /// backward() in two parts: compute() hands on what the parameters get, in order, and give() adds
  /// it to their gradients. Blocks with a native backward add by themselves.
  void compute(BlockId block, MicrobatchId microbatch, double seed, const OnGradient& on_gradient);
  void give(const GivenGradient& gradient, const OnSettled& on_settled);

  void set_tap(model::Tap tap) { tap_ = std::move(tap); }

 private:
  // The tensors kept of one block between its forward and its backward.
  struct SavedBlock {
    at::Tensor input;
    at::Tensor output;                                // with a graph, unless the backward is native
    std::map<param::ParameterId, std::int64_t> uses;  // gradients still to come through the graph
    std::vector<at::Tensor> native;                   // what a native backward reads
  };
  struct Microbatch {
    MicrobatchInput input = {};
    at::Tensor activation = {};  // what the next block reads
    at::Tensor gradient = {};    // what the block before reads in its backward
    std::map<BlockId, SavedBlock> saved = {};
  };

  [[nodiscard]] bool gives_losses(BlockId block) const;
  [[nodiscard]] model::BlockContext context_of(const MicrobatchInput& input,
                                               const model::ParameterReader& use,
                                               const model::Tap& tap);
  // Runs the block on its saved input and keeps what its backward needs.
  void record(BlockId block, Microbatch& entry, const model::Tap& tap);
  [[nodiscard]] at::Tensor run_without_graph(BlockId block, const at::Tensor& x,
                                             const MicrobatchInput& input, const model::Tap& tap);
  void run_again(BlockId block, Microbatch& entry);
  void add_gradient(param::ParameterId id, const at::Tensor& grad) override;

  model::Model& model_;
  param::ParameterViews leaves_;  // require gradients unless frozen
  model::ParameterReader read_leaf_;
  param::GradientMemory& gradients_;
  std::uint64_t seed_;
  at::ScalarType buffer_dtype_;
  RecomputePlan recompute_;
  // Backward passes until each parameter is settled, and those of them that are still to come.
  base::IndexedVector<param::ParameterId, std::int64_t> num_to_settle_;
  base::IndexedVector<param::ParameterId, std::int64_t> unsettled_;
  std::map<MicrobatchId, Microbatch> microbatches_;
  model::TensorAxis& tensor_axis_;
  bool training_ = true;
  model::Tap tap_;
  model::Tap no_tap_;  // of blocks that run again
  // The backward under way.
  SavedBlock* active_block_ = nullptr;
  const OnGradient* on_gradient_ = nullptr;
};

}  // namespace dtrain::parallel
