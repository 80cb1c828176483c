// The one engine that the trainer drives: executes the actions of a step under any layout.
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

/// Yes or no of one rank or, once reduced, of all ranks: yes where any rank's is.
using Votes = std::vector<bool>;

/// A loss over the global batch; equal on every rank.
struct StepLoss {
  double sum_nll = 0;  ///< nats
  std::int64_t num_tokens = 0;
  Votes votes = {};  ///< of all ranks

  [[nodiscard]] double mean() const { return sum_nll / static_cast<double>(num_tokens); }
};

/// Sums losses in float64, each in its slot, and counts votes.
///
/// Collective: reduce, by every rank of the world, with as many losses and votes.
/// Throws:     wait and read what Work::wait throws.
/// Threads:    one.
class LossReport {
 public:
  /// `setup` must outlive this.
  LossReport(const EngineSetup& setup, std::int64_t num_losses, std::size_t num_votes);

  /// Room for the losses that this rank reports, (num_losses) float64, zero. Adding the zeros of
  /// ranks that write nothing there is exact.
  [[nodiscard]] at::Tensor losses() const { return slots_.narrow(0, 0, num_losses_); }

  /// Async: the losses are not touched until wait() or read() returns.
  void reduce(const Votes& votes);

  /// From now on losses() holds those of all ranks.
  void wait() { reduced_.wait(); }

  /// The findings, where the host can read them.
  struct Findings {
    double sum = 0;    ///< of the losses of all ranks, added in order to what was before
    Votes votes = {};  ///< of all ranks
    std::vector<double> values = {};
  };
  /// Blocks until all has come. along: (n) float64, is read at the same time; undefined: nothing.
  [[nodiscard]] Findings read(double before = 0, const at::Tensor& along = {});

 private:
  const EngineSetup& setup_;
  std::int64_t num_losses_;
  at::Tensor slots_;  // (losses + votes) float64
  comm::Work reduced_;
};

/// A step beyond these makes no update.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();  ///< nats per token
  double grad_norm = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool any() const { return std::isfinite(loss) || std::isfinite(grad_norm); }
};

struct StepOptions {
  double max_norm = 0;                       ///< of the gradients; 0: they stay as they are
  std::optional<double> learning_rate = {};  ///< none: the gradients alone, without an update
  bool compresses = true;  ///< gradients, where the engine does; equal on all ranks
  Votes votes = {};        ///< of this rank
  StepLimits limits = {};  ///< equal on all ranks
};

/// The findings of a step before its update; equal on all ranks.
struct StepResult {
  StepLoss loss = {};
  double grad_norm = 0;         ///< before clipping; 0 without clip_grad_norm
  bool has_overflowed = false;  ///< the loss's scale was too large, and is halved
  bool is_beyond = false;       ///< finite, and beyond the step's limits: no update has followed

  /// Else no update has followed.
  [[nodiscard]] bool is_finite() const {
    return std::isfinite(loss.mean()) && std::isfinite(grad_norm);
  }
};

/// An evaluation over all ranks: batch b holds the sequences [b * batch_size, + batch_size), the
/// last one possibly fewer, and is computed by data-parallel rank b mod size.
struct EvaluationPlan {
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;  ///< tokens of a sequence
  std::int64_t batch_size = 1;
  /// Reads the sequences [first, first + count). Asked for this rank's batches, one at a time.
  std::function<data::Batch(std::int64_t first, std::int64_t count)> read = {};
  /// Returns whether this rank wants to end early; asked after each batch. Empty: it never does.
  std::function<bool()> wants_stop = {};
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
  StepEngine(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
             EngineOptions options);

  /// Predicts what an engine with these options holds. microbatch: of a rank, in the compute dtype.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model, const EngineOptions& options,
                                         const model::BatchShape& microbatch);

  // A step is forward_backward, clip_grad_norm, optimizer_step (or without the last two), then
  // finish_step. The host reads no result of a step from a device
  // before finish_step.

  /// Computes the gradients of the mean loss over the global batch and reduces them.
  /// microbatches: this rank's grad_accum_steps microbatches, dealt as deal() says and of equal
  /// sizes on all ranks. votes: travel with the loss; as many on all ranks. compresses: as
  /// StepOptions'.
  ///
  /// Collective.
  void forward_backward(std::span<const data::Batch> microbatches, const Votes& votes = {},
                        bool compresses = true);

  /// Takes the loss's scale out of the gradients and scales them so that their global norm is at
  /// most max_norm (0: as they are). A norm that is not finite leaves them alone.
  ///
  /// Collective.
  void clip_grad_norm(double max_norm);

  /// Updates the parameters from clipped gradients; without effect where loss or norm is not
  /// finite, or beyond the limits.
  ///
  /// Collective.
  void optimizer_step(double learning_rate, const StepLimits& limits = {});

  /// Reads what the step found; with loss scaling the scale follows from it.
  ///
  /// Throws: Error{numerics} where gradients overflow at the smallest scale of the loss.
  StepResult finish_step();

  /// Null without loss scaling.
  [[nodiscard]] const optim::GradScaler* scaler() const { return updater_.scaler(); }

  /// A whole step.
  ///
  /// Collective.
  /// Throws:     as finish_step.
  StepResult train_step(std::span<const data::Batch> microbatches, const StepOptions& options);

  /// The loss over the plan's sequences, without dropout: each one's sum over its tokens, added in
  /// their order. Nothing if a rank wanted to stop before the last round began. A round is one batch
  /// of every data-parallel rank; its losses travel while the next rounds are computed.
  ///
  /// Collective: with equal plans.
  [[nodiscard]] std::optional<StepLoss> evaluate(const EvaluationPlan& plan);
  /// The mean over all of `sequences`, in nats per token; as above.
  ///
  /// Collective.
  [[nodiscard]] std::optional<double> evaluate(const data::EvaluationSequences& sequences,
                                               std::int64_t batch_size,
                                               const std::function<bool()>& wants_stop = {});

  /// Makes copies of parameters and optimizer state that several ranks hold equal to those of the
  /// first of them; without effect where all ranks round alike.
  ///
  /// Collective.
  void make_copies_equal() { whole_.make_copies_equal(); }

  /// This rank's part of a checkpoint, sharing memory.
  [[nodiscard]] checkpoint::State state() const { return whole_.state(); }
  /// WholeModel::load_state.
  ///
  /// Collective.
  void load_state(checkpoint::Source& source, std::span<const std::string> frozen_before = {}) {
    whole_.load_state(source, frozen_before);
  }
  /// The parameters alone.
  ///
  /// Collective.
  void load_weights(checkpoint::Source& source) { whole_.load_weights(source); }

  /// Which microbatches of a step are this rank's.
  [[nodiscard]] data::MicrobatchDeal deal() const;

  /// Visits all parameters (gradients) of the whole model in the order of their ids, on every rank.
  ///
  /// Collective.
  void visit_parameters(const WholeModel::Visit& visit) { whole_.visit(parameters(), visit); }
  void visit_gradients(const WholeModel::Visit& visit) { whole_.visit(gradients(), visit); }
  /// The norm of all parameters of the whole model.
  ///
  /// Collective.
  [[nodiscard]] double parameter_norm();

  [[nodiscard]] const Precision& precision() const { return setup_.options.precision; }
  [[nodiscard]] const DataAxis& data_axis() const { return executor_.axis(); }
  /// The values that this rank updates, or all where nothing is sharded.
  [[nodiscard]] const param::Arena& parameters() const {
    return data_axis().parameters().masters();
  }
  [[nodiscard]] const param::Arena& gradients() const {
    return data_axis().gradients().gradients();
  }
  /// What compression did in the last step; nothing without.
  [[nodiscard]] std::optional<CompressionReport> compression() const {
    return data_axis().gradients().compression();
  }
  /// Called with every intermediate value that blocks report; empty: not called.
  void set_tap(model::Tap tap) { executor_.set_tap(std::move(tap)); }
  /// Where blocks' passes are noted as they begin; null: nowhere.
  void set_activity(base::Activity* activity) { executor_.set_activity(activity); }

 private:
  /// The step under way, on the device of the gradients.
  struct Step {
    LossReport report;
    std::int64_t num_tokens = 0;
    at::Tensor norm = {};    // () float64, of the gradients before clipping
    at::Tensor within = {};  // () bool, of limits; undefined: there are none
    bool updates = false;    // where loss and norm allow it
  };

  EngineSetup setup_;
  Executor executor_;
  Updater updater_;
  WholeModel whole_;
  std::optional<Step> step_;
};

}  // namespace dtrain::parallel
