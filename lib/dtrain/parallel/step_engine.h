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
#include "dtrain/data/microbatches.h"
#include "dtrain/model/model.h"
#include "dtrain/optim/global_norm.h"
#include "dtrain/optim/grad_scaler.h"
#include "dtrain/optim/make_optimizer.h"
#include "dtrain/parallel/action.h"
#include "dtrain/parallel/block_runner.h"
#include "dtrain/parallel/data/data_axis.h"
#include "dtrain/parallel/data/data_memory.h"
#include "dtrain/parallel/data/data_traffic.h"

namespace dtrain::parallel {

struct EngineOptions {
  at::ScalarType master_dtype = at::kFloat;   ///< of masters, gradients and optimizer state
  at::ScalarType compute_dtype = at::kFloat;  ///< of what blocks read and compute
  at::ScalarType reduce_dtype = at::kFloat;   ///< in which gradients travel between ranks
  at::ScalarType buffer_dtype = at::kFloat;   ///< of the model's constant tables
  bool scales_loss = false;                   ///< against underflow of float16
  std::int64_t grad_accum_steps = 1;          ///< microbatches per rank and step
  std::uint64_t seed = 0;                     ///< of initial weights and dropout
  comm::Reduction reduction = comm::Reduction::ordered;
  DataPlan data = {};
  std::string disk_folder = {};  ///< of masters and optimizer state; empty: they are in RAM
  optim::OptimizerOptions optimizer = {};
  RecomputePlan recompute = {};
};

/// How the arenas of an engine with these options are cut.
[[nodiscard]] param::ArenaLayout engine_layout(const model::Model& model,
                                               const EngineOptions& options);
[[nodiscard]] DataAxisOptions axis_options(const EngineOptions& options);

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
  /// Initialises parameters from options.seed. `model`, `world` and the groups must outlive this.
  ///
  /// Collective: over the data groups.
  StepEngine(model::Model& model, comm::World& world, const DataGroups& groups,
             EngineOptions options);

  /// Computes the gradients of the mean loss over the global batch; they are reduced on return.
  /// microbatches: this rank's grad_accum_steps microbatches, dealt as deal() says and of equal
  /// sizes on all ranks. flags: travel with the loss.
  ///
  /// Collective: over the data groups.
  [[nodiscard]] StepLoss forward_backward(std::span<const data::Batch> microbatches,
                                          StepFlags flags = {});

  /// Takes the loss's scale out of the gradients, scales them so that their global norm is at most
  /// max_norm (0: as they are) and returns the norm before, equal on all ranks. A norm that is not
  /// finite leaves them alone.
  ///
  /// Collective: over the data groups.
  double clip_grad_norm(double max_norm);

  /// With loss scaling: learns how a step of this gradient norm went, and says whether it has
  /// overflowed, so that no update may follow. Else false.
  ///
  /// Throws: Error{numerics} where the smallest scale overflows.
  [[nodiscard]] bool has_overflowed(double grad_norm);
  /// Null without loss scaling.
  [[nodiscard]] const optim::GradScaler* scaler() const {
    return options_.scales_loss ? &scaler_ : nullptr;
  }

  /// Collective: over the data groups.
  void optimizer_step(double learning_rate);

  /// The loss over batches 0 to num_batches - 1, without dropout. Batch j is computed by rank
  /// j mod size, which asks `batch` for it by its number when the one before is done: one at a
  /// time is held. num_batches counts those of all ranks.
  ///
  /// Collective: over the data groups.
  [[nodiscard]] StepLoss evaluate(std::int64_t num_batches,
                                  const std::function<data::Batch(std::int64_t)>& batch);

  /// This rank's part of parameters and optimizer state, sharing memory: model.NAME,
  /// optimizer.STATE.NAME (exp_avg and exp_avg_sq, or momentum_buffer) in storage shapes, and
  /// optimizer.num_updates; with loss scaling optimizer.loss_scale.
  [[nodiscard]] checkpoint::State state() const;
  /// Collective: over the world.
  void load_state(checkpoint::Source& source);
  /// The parameters alone.
  ///
  /// Collective: over the world.
  void load_weights(checkpoint::Source& source);

  /// Which microbatches of a step are this rank's.
  [[nodiscard]] data::MicrobatchDeal deal() const;

  /// Given each parameter's values in full, in its storage shape and the masters' dtype; valid
  /// during the call.
  using Visit = std::function<void(param::ParameterId, const at::Tensor&)>;
  /// Visits all parameters (gradients) in the order of their ids, a unit at a time gathered.
  ///
  /// Collective: over the data groups.
  void visit_parameters(const Visit& visit) { visit_units(axis_.parameters().masters(), visit); }
  void visit_gradients(const Visit& visit) { visit_units(gradients(), visit); }
  /// The norm of all parameters.
  ///
  /// Collective: over the data groups.
  [[nodiscard]] double parameter_norm() { return norm_of(axis_.parameters().masters()); }

  [[nodiscard]] const param::ArenaLayout& layout() const { return layout_; }
  [[nodiscard]] const DataAxis& data_axis() const { return axis_; }
  /// What a step gathers and reduces, by arithmetic.
  [[nodiscard]] DataTraffic traffic() const;
  /// What this rank updates, or all where nothing is sharded.
  [[nodiscard]] const param::Arena& parameters() const { return axis_.parameters().masters(); }
  [[nodiscard]] const param::Arena& gradients() const { return axis_.gradients().gradients(); }
  /// Called with every intermediate value that blocks report; empty: not called.
  void set_tap(model::Tap tap) { runner_.set_tap(std::move(tap)); }

 private:
  /// Of all ranks, in one step.
  [[nodiscard]] std::int64_t num_microbatches() const;
  void initialise();
  [[nodiscard]] double loss_scale() const;
  void execute(const Action& action, std::span<const data::Batch> microbatches);
  void forward(const Action& action, std::span<const data::Batch> microbatches);
  void backward(const Action& action);
  /// Of one batch, or nothing for a rank without one, which takes part in what is collective.
  [[nodiscard]] at::Tensor evaluate_one(const data::Batch* batch);
  [[nodiscard]] double norm_of(const param::Arena& values);
  void visit_units(const param::Arena& values, const Visit& visit);

  model::Model& model_;
  DataGroups groups_;
  EngineOptions options_;
  param::ArenaLayout layout_;
  std::unique_ptr<param::DiskMemory> disk_;  // null: everything is in RAM
  std::vector<Action> actions_;
  DataAxis axis_;
  optim::GlobalNorm norm_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_;
  BlockRunner runner_;
  // (microbatches of all ranks + 3) float64: the sum over each microbatch's tokens, in its slot,
  // then how many ranks set each flag.
  at::Tensor report_;
  comm::Work report_reduced_;
  std::int64_t global_tokens_ = 0;  // of the step under way
};

}  // namespace dtrain::parallel
