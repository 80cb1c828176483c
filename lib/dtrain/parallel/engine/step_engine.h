// The one engine that the trainer drives: executes the actions of a step under any layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/comm/world.h"
#include "dtrain/data/batch.h"
#include "dtrain/data/microbatches.h"
#include "dtrain/parallel/data/data_traffic.h"
#include "dtrain/parallel/engine/block_runner.h"
#include "dtrain/parallel/engine/evaluation.h"
#include "dtrain/parallel/engine/whole_model.h"

namespace dtrain::parallel {

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

/// Holds a rank's parameters, gradients and optimizer state. Collective members are so over all
/// groups.
///
/// Throws:  from collective members what Work::wait throws.
/// Threads: one caller.
class StepEngine {
 public:
  /// Initialises parameters from options.seed. `model`, `world` and the groups must outlive this.
  ///
  /// Collective.
  StepEngine(model::Model& model, comm::World& world, const EngineGroups& groups,
             EngineOptions options);
  /// The same for a part of a model; whole: what it is a part of.
  StepEngine(model::Model& model, comm::World& world, const EngineGroups& groups,
             EngineOptions options, WholeParameters whole);

  /// Computes the gradients of the mean loss over the global batch; they are reduced on return.
  /// microbatches: this rank's grad_accum_steps microbatches, dealt as deal() says and of equal
  /// sizes on all ranks. flags: travel with the loss.
  ///
  /// Collective.
  [[nodiscard]] StepLoss forward_backward(std::span<const data::Batch> microbatches,
                                          StepFlags flags = {});

  /// Takes the loss's scale out of the gradients, scales them so that their global norm is at most
  /// max_norm (0: as they are) and returns the norm before, equal on all ranks. A norm that is not
  /// finite leaves them alone.
  ///
  /// Collective.
  double clip_grad_norm(double max_norm) { return updater_.clip(gradients(), max_norm); }

  /// Updater::has_overflowed.
  [[nodiscard]] bool has_overflowed(double grad_norm) { return updater_.has_overflowed(grad_norm); }
  /// Null without loss scaling.
  [[nodiscard]] const optim::GradScaler* scaler() const { return updater_.scaler(); }

  /// Collective.
  void optimizer_step(double learning_rate);

  /// The loss over the plan's sequences, without dropout: each one's sum over its tokens, added in
  /// their order. Nothing if a rank wanted to stop before the last round began.
  ///
  /// Collective: with equal plans.
  [[nodiscard]] std::optional<StepLoss> evaluate(const EvaluationPlan& plan);

  /// Makes copies of parameters and optimizer state that several ranks hold equal to those of the
  /// first of them; without effect where all ranks round alike.
  ///
  /// Collective.
  void make_copies_equal() { whole_.make_copies_equal(); }

  /// What a checkpoint holds of this rank, sharing memory.
  [[nodiscard]] checkpoint::State state() const { return whole_.state(); }
  /// Collective.
  void load_state(checkpoint::Source& source) { whole_.load_state(source); }
  /// The parameters alone.
  ///
  /// Collective.
  void load_weights(checkpoint::Source& source) { whole_.load_weights(source); }

  /// Which microbatches of a step are this rank's.
  [[nodiscard]] data::MicrobatchDeal deal() const;

  /// Visits all parameters (gradients) of the whole model in the order of their numbers, on every
  /// rank.
  ///
  /// Collective.
  void visit_parameters(const WholeModel::Visit& visit) { whole_.visit(parameters(), visit); }
  void visit_gradients(const WholeModel::Visit& visit) { whole_.visit(gradients(), visit); }
  /// The norm of all parameters of the whole model.
  ///
  /// Collective.
  [[nodiscard]] double parameter_norm() { return updater_.norm_of(parameters()); }

  [[nodiscard]] const param::ArenaLayout& layout() const { return setup_.layout; }
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
  void execute(const Action& action, std::span<const data::Batch> microbatches);
  void forward(const Action& action, const data::Batch& batch);
  void backward(const Action& action);
  /// Room for what passes between stages for a microbatch of this size.
  void offer(Channel channel, const Action& action, const data::Batch& batch);
  /// Ranks that hold slices of one block compute the same losses: one of them tells.
  [[nodiscard]] bool reports_losses() const {
    return setup_.model.gives_losses &&
           (setup_.groups.tensor == nullptr || setup_.groups.tensor->rank() == 0);
  }
  [[nodiscard]] bool takes_from_stage(std::int64_t block) const;
  [[nodiscard]] bool gives_to_stage(std::int64_t block) const;
  void sum_over_stages();
  /// Of one batch, or nothing for a rank without one, which takes part in what is collective.
  [[nodiscard]] at::Tensor evaluate_one(const data::Batch* batch);

  EngineSetup setup_;
  std::vector<Action> actions_;
  std::size_t last_forward_ = 0;  // of the actions
  std::optional<Transfers> transfers_;
  DataAxis axis_;
  Updater updater_;
  WholeModel whole_;
  BlockRunner runner_;
  // (microbatches of all ranks + 3) float64: the sum over each microbatch's tokens, in its slot,
  // then how many ranks set each flag.
  at::Tensor report_;
  comm::Work report_reduced_;
  std::int64_t global_tokens_ = 0;  // of the step under way
};

}  // namespace dtrain::parallel
