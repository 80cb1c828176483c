// The step engine: runs training steps and evaluations under any layout.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/data/batch.h"
#include "dtrain/parallel/engine/internal/executor.h"
#include "dtrain/parallel/engine/whole_model.h"

namespace dtrain::data {
class EvaluationSequences;
}

namespace dtrain::parallel {

/// Flags on which all ranks must agree, such as a stop request: one rank's flags or, once reduced,
/// their logical OR over all ranks.
using Votes = std::vector<bool>;

/// Loss over the global batch; equal on every rank.
struct StepLoss {
  double sum_nll = 0;  ///< nats
  std::int64_t num_tokens = 0;
  Votes votes = {};  ///< logical OR over all ranks

  [[nodiscard]] double mean() const { return sum_nll / static_cast<double>(num_tokens); }
};

/// Reduces losses, each in its own float64 slot, and votes over all ranks in one all-reduce.
///
/// Collective: reduce(), on every rank of the world, with equal numbers of losses and votes.
/// Throws:     wait() and read() throw what Work::wait throws.
/// Threads:    one.
class LossReducer {
 public:
  /// `setup` must outlive this.
  LossReducer(const EngineSetup& setup, std::int64_t num_losses, std::size_t num_votes);

  /// Slots for the losses of all ranks, (num_losses) float64, initially zero. A rank writes only
  /// its own slots; adding the zeros of other ranks is exact.
  [[nodiscard]] at::Tensor losses() const { return slots_.narrow(0, 0, num_losses_); }

  /// Starts the all-reduce.
  ///
  /// Async: do not touch losses() until wait() or read() returns.
  void reduce(const Votes& votes);

  /// Blocks until losses() holds the losses of all ranks.
  void wait() { reduced_.wait(); }

  /// Reduced values on the host.
  struct Totals {
    double sum = 0;    ///< `before` plus all ranks' losses, added in order
    Votes votes = {};  ///< logical OR over all ranks
    std::vector<double> values = {};
  };
  /// Blocks until the reduction ends and returns its results on the host. before: start value of
  /// the sum. extra: (n) float64, copied to Totals::values in the same transfer; undefined: none.
  [[nodiscard]] Totals read(double before = 0, const at::Tensor& extra = {});

 private:
  const EngineSetup& setup_;
  std::int64_t num_losses_;
  at::Tensor slots_;  // (losses + votes) float64
  comm::Work reduced_;
};

/// Limits beyond which a step's update is skipped.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();  ///< nats per token
  double grad_norm = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool any() const { return std::isfinite(loss) || std::isfinite(grad_norm); }
};

/// Options of train_step().
struct StepOptions {
  double max_norm = 0;                       ///< for gradient clipping; 0: no clipping
  std::optional<double> learning_rate = {};  ///< empty: compute gradients only, without an update
  bool compresses = true;  ///< false: send gradients uncompressed; equal on all ranks
  Votes votes = {};        ///< this rank's votes
  StepLimits limits = {};  ///< equal on all ranks
};

/// Loss, gradient norm and flags of a step, before its update; equal on all ranks.
struct StepResult {
  StepLoss loss = {};
  double grad_norm = 0;         ///< before clipping; 0 if clip_grad_norm() was not called
  bool has_overflowed = false;  ///< gradients overflowed; the loss scale was halved
  bool exceeds_limits = false;  ///< finite but above StepLimits; the update was skipped

  /// If false, the update was skipped.
  [[nodiscard]] bool is_finite() const {
    return std::isfinite(loss.mean()) && std::isfinite(grad_norm);
  }
};

/// An evaluation over all ranks. Batch b holds sequences [b * batch_size, (b + 1) * batch_size);
/// the last batch may hold fewer. Data-parallel rank b mod size computes batch b.
struct EvaluationPlan {
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;  ///< tokens per sequence
  std::int64_t batch_size = 1;
  /// Reads sequences [first, first + count). Called for this rank's batches, one at a time.
  std::function<data::Batch(std::int64_t first, std::int64_t count)> read = {};
  /// Returns whether this rank wants to stop early; called after each batch. Empty: never stops.
  std::function<bool()> wants_stop = {};
};

/// Owns a rank's parameters, gradients and optimizer state, and runs steps and evaluations.
/// Members marked "Collective" communicate over all groups.
///
/// Throws:  collective members throw what Work::wait throws.
/// Threads: one caller.
class StepEngine {
 public:
  /// Initialises parameters from options.seed. `model`, `world` and the groups must outlive this.
  ///
  /// Collective.
  StepEngine(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
             EngineOptions options);

  /// Predicts an engine's memory. microbatch: shape of a rank's microbatch, in the compute dtype.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model, const EngineOptions& options,
                                         const model::BatchShape& microbatch);

  // A step consists of forward_backward, optionally clip_grad_norm and optimizer_step, and
  // finish_step. Before finish_step the host reads no results from a device.

  /// Computes the gradients of the mean loss over the global batch and reduces them.
  /// microbatches: this rank's grad_accum_steps microbatches, chosen by microbatch_assignment(),
  /// with equal sizes on all ranks. votes: reduced with the loss; equally many on all ranks.
  /// compresses: as in StepOptions.
  ///
  /// Collective.
  void forward_backward(std::span<const data::Batch> microbatches, const Votes& votes = {},
                        bool compresses = true);

  /// Divides the gradients by the loss scale and clips their global norm to max_norm (0: no
  /// clipping). Does not clip if the norm is not finite.
  ///
  /// Collective.
  void clip_grad_norm(double max_norm);

  /// Updates the parameters from the gradients, which clip_grad_norm() may have clipped. No-op if
  /// the loss or norm is not finite or exceeds the limits.
  ///
  /// Collective.
  void optimizer_step(double learning_rate, const StepLimits& limits = {});

  /// Reads the step's results and adjusts the loss scale.
  ///
  /// Throws: Error{numerics} if gradients overflow at the smallest loss scale.
  StepResult finish_step();

  /// Returns null without loss scaling.
  [[nodiscard]] const optim::GradScaler* scaler() const { return updater_.scaler(); }

  /// Runs a whole step.
  ///
  /// Collective.
  /// Throws:     as finish_step().
  StepResult train_step(std::span<const data::Batch> microbatches, const StepOptions& options);

  /// Computes the loss over the plan's sequences, without dropout, adding the sequences' losses in
  /// order. A round is one batch on every data-parallel rank; its losses are reduced while the next
  /// rounds compute. Empty if a rank wanted to stop before the last round began.
  ///
  /// Collective: with equal plans.
  [[nodiscard]] std::optional<StepLoss> evaluate(const EvaluationPlan& plan);
  /// As above; returns the mean over all of `sequences`, in nats per token.
  ///
  /// Collective.
  [[nodiscard]] std::optional<double> evaluate(const data::EvaluationSequences& sequences,
                                               std::int64_t batch_size,
                                               const std::function<bool()>& wants_stop = {});

  /// Returns which microbatches of a global batch this rank computes.
  [[nodiscard]] data::MicrobatchAssignment microbatch_assignment() const;

  /// Returns the norm of all parameters of the whole model.
  ///
  /// Collective.
  [[nodiscard]] double parameter_norm();

  [[nodiscard]] const Precision& precision() const { return setup_.options.precision; }
  /// The master weights that this rank updates; all parameters if there is no sharding.
  [[nodiscard]] const param::Arena& parameters() const {
    return executor_.axis().parameters().masters();
  }
  [[nodiscard]] const param::Arena& gradients() const {
    return executor_.axis().gradients().gradients();
  }
  /// Statistics of the last step's compression; empty without compression.
  [[nodiscard]] std::optional<CompressionReport> compression() const {
    return executor_.axis().gradients().compression();
  }
  /// The unsharded view of this engine's state, which visits, saves and loads it.
  [[nodiscard]] WholeModel& whole_model() { return whole_model_; }
  /// Sets a callback for every intermediate value that blocks report; empty: none.
  void set_tap(model::Tap tap) { executor_.set_tap(std::move(tap)); }
  /// Sets the object that records the start of each block pass; null: none.
  void set_activity(base::Activity* activity) { executor_.set_activity(activity); }

 private:
  /// The current step; tensors are on the gradients' device.
  struct Step {
    LossReducer losses;
    std::int64_t num_tokens = 0;
    at::Tensor norm = {};    // () float64, gradient norm before clipping
    at::Tensor within = {};  // () bool, within StepLimits; undefined: no limits
    bool updates = false;    // optimizer_step() was called
  };

  EngineSetup setup_;
  Executor executor_;
  Updater updater_;
  WholeModel whole_model_;
  std::optional<Step> step_;
};

}  // namespace dtrain::parallel
