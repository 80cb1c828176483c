// The one engine that the trainer drives: executes the actions of a step under any layout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/world.h"
#include "dtrain/data/batch.h"
#include "dtrain/model/model.h"
#include "dtrain/optim/adamw.h"
#include "dtrain/parallel/action.h"
#include "dtrain/parallel/block_runner.h"
#include "dtrain/parallel/data_axis.h"
#include "dtrain/parallel/gradient_store.h"

namespace dtrain::parallel {

struct EngineOptions {
  at::ScalarType dtype = at::kFloat;
  std::int64_t grad_accum_steps = 1;  ///< microbatches per rank and step
  std::uint64_t seed = 0;             ///< of initial weights and dropout
  comm::Reduction reduction = comm::Reduction::ordered;
  optim::AdamWOptions adamw;
};

/// What a rank wants all ranks to know at the end of a step.
struct StepFlags {
  bool stop = false;  ///< it was asked to stop
  bool save = false;  ///< it wants a checkpoint
  bool busy = false;  ///< it is still writing the last one
};

/// The loss of a step over the global batch; the same on every rank.
struct StepLoss {
  double sum_nll = 0;  ///< nats
  std::int64_t num_tokens = 0;
  StepFlags flags = {};  ///< each true if any rank's was

  [[nodiscard]] double mean() const { return sum_nll / static_cast<double>(num_tokens); }
};

/// Holds a rank's parameters, gradients and optimizer state.
///
/// Throws:  from collective members what Work::wait throws.
/// Threads: one caller.
class StepEngine {
 public:
  /// Initialises parameters from options.seed. `model`, `world` and `data_group` must outlive this.
  StepEngine(model::Model& model, comm::World& world, comm::ProcessGroup& data_group,
             EngineOptions options);

  /// Computes the gradients of the mean loss over the global batch; they are reduced on return.
  /// microbatches: this rank's grad_accum_steps microbatches, of equal sizes on all ranks.
  /// flags: travel with the loss.
  ///
  /// Collective: over the data group.
  [[nodiscard]] StepLoss forward_backward(std::span<const data::Batch> microbatches,
                                          StepFlags flags = {});

  /// Scales the gradients so that their global norm is at most max_norm (0: as they are) and
  /// returns the norm before, equal on all ranks. A norm that is not finite leaves them alone.
  ///
  /// Collective: over the data group.
  double clip_grad_norm(double max_norm);

  void optimizer_step(double learning_rate);

  /// The loss over batches 0 to num_batches - 1, without dropout. Batch j is computed by rank
  /// j mod size, which asks `batch` for it by its number when the one before is done: one at a
  /// time is held. num_batches counts those of all ranks.
  ///
  /// Collective: over the data group.
  [[nodiscard]] StepLoss evaluate(std::int64_t num_batches,
                                  const std::function<data::Batch(std::int64_t)>& batch);

  /// This rank's parameters and optimizer state, sharing memory: model.NAME,
  /// optimizer.exp_avg.NAME, optimizer.exp_avg_sq.NAME in storage shapes, and
  /// optimizer.num_updates.
  [[nodiscard]] checkpoint::State state() const;
  /// Collective: over the world.
  void load_state(checkpoint::Source& source);
  /// The parameters alone.
  ///
  /// Collective: over the world.
  void load_weights(checkpoint::Source& source);

  [[nodiscard]] const param::ArenaLayout& layout() const { return layout_; }
  [[nodiscard]] const param::Arena& parameters() const { return parameters_; }
  [[nodiscard]] const param::Arena& gradients() const { return store_.gradients(); }
  [[nodiscard]] std::int64_t num_gradient_arenas() const { return store_.num_arenas(); }
  /// Called with every intermediate value that blocks report; empty: not called.
  void set_tap(model::Tap tap) { runner_.set_tap(std::move(tap)); }

 private:
  /// Of all ranks, in one step.
  [[nodiscard]] std::int64_t num_microbatches() const;
  void execute(const Action& action, std::span<const data::Batch> microbatches);
  void backward(const Action& action);

  model::Model& model_;
  comm::ProcessGroup& data_group_;
  EngineOptions options_;
  param::ArenaLayout layout_;
  param::Arena parameters_;
  GradientStore store_;
  optim::AdamW optimizer_;
  std::unique_ptr<DataAxis> data_axis_;
  BlockRunner runner_;
  std::vector<Action> actions_;
  // (microbatches of all ranks + 3) float64: the sum over each microbatch's tokens, in its slot,
  // then how many ranks set each flag.
  at::Tensor report_;
  comm::Work report_reduced_;
  std::int64_t global_tokens_ = 0;  // of the step under way
};

}  // namespace dtrain::parallel
