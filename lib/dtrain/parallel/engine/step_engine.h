// The one engine that the trainer drives: executes the actions of a step under any layout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include "dtrain/parallel/data/data_axis.h"
#include "dtrain/parallel/data/data_memory.h"
#include "dtrain/parallel/data/data_traffic.h"
#include "dtrain/parallel/engine/action.h"
#include "dtrain/parallel/engine/block_runner.h"
#include "dtrain/parallel/engine/evaluation.h"
#include "dtrain/parallel/placement.h"
#include "dtrain/parallel/stage/stage_plan.h"
#include "dtrain/parallel/stage/transfers.h"

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
  StagePlan stage = {};
};

/// The ranks that one rank of an engine works with. What is null stands for an axis of size 1.
struct EngineGroups {
  DataGroups data;
  comm::ProcessGroup* world = nullptr;        ///< all ranks; null: those of `data` are all
  comm::ProcessGroup* tensor = nullptr;       ///< ranks that hold slices of the same blocks
  model::TensorAxis* tensor_axis = nullptr;   ///< how blocks work together over `tensor`
  const PipelineGroups* pipeline = nullptr;   ///< the stages
  std::vector<SharedParameters> shared = {};  ///< what this stage shares with others
};

/// How the arenas of an engine with these options are cut.
[[nodiscard]] param::ArenaLayout engine_layout(const model::Model& model,
                                               const EngineOptions& options);
[[nodiscard]] DataAxisOptions axis_options(const EngineOptions& options);
/// What a rank with these options does in a step.
[[nodiscard]] std::vector<Action> engine_actions(const model::Model& model,
                                                 const EngineOptions& options);

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
  void make_copies_equal();

  /// What a checkpoint holds of this rank (engine_state.h), sharing memory.
  [[nodiscard]] checkpoint::State state() const;
  /// Collective.
  void load_state(checkpoint::Source& source);
  /// The parameters alone.
  ///
  /// Collective.
  void load_weights(checkpoint::Source& source);

  /// Which microbatches of a step are this rank's.
  [[nodiscard]] data::MicrobatchDeal deal() const;

  /// Given each parameter's values in full, in its storage shape and the masters' dtype; valid
  /// during the call. number: of the whole model.
  using Visit = std::function<void(param::ParameterId number, const at::Tensor&)>;
  /// Visits all parameters (gradients) of the whole model in the order of their numbers, on every
  /// rank; a unit at a time is gathered.
  ///
  /// Collective.
  void visit_parameters(const Visit& visit) { visit_whole(axis_.parameters().masters(), visit); }
  void visit_gradients(const Visit& visit) { visit_whole(gradients(), visit); }
  /// The norm of all parameters of the whole model.
  ///
  /// Collective.
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
  void forward(const Action& action, const data::Batch& batch);
  void backward(const Action& action);
  /// Room for what passes between stages for a microbatch of this size.
  void offer(Channel channel, const Action& action, const data::Batch& batch);
  /// Ranks that hold slices of one block compute the same losses: one of them tells.
  [[nodiscard]] bool reports_losses() const {
    return model_.gives_losses && (groups_.tensor == nullptr || groups_.tensor->rank() == 0);
  }
  [[nodiscard]] bool takes_from_stage(std::int64_t block) const;
  [[nodiscard]] bool gives_to_stage(std::int64_t block) const;
  void sum_over_stages();
  [[nodiscard]] comm::ProcessGroup& world() const;
  /// Of one batch, or nothing for a rank without one, which takes part in what is collective.
  [[nodiscard]] at::Tensor evaluate_one(const data::Batch* batch);
  [[nodiscard]] double norm_of(const param::Arena& values);
  /// A unit of this rank's parameters, (elements).
  [[nodiscard]] at::Tensor gathered_unit(const param::Arena& values, std::int64_t unit);
  void visit_whole(const param::Arena& values, const Visit& visit);

  model::Model& model_;
  EngineGroups groups_;
  EngineOptions options_;
  Placement placement_;
  param::ArenaLayout layout_;
  std::unique_ptr<param::DiskMemory> disk_;  // null: everything is in RAM
  std::vector<Action> actions_;
  std::size_t last_forward_ = 0;  // of the actions
  std::optional<Transfers> transfers_;
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
