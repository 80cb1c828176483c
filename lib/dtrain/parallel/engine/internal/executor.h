// Executes action lists: runs blocks, triggers gathers and reductions, and transfers tensors
// between pipeline stages.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "dtrain/base/activity.h"
#include "dtrain/comm/world.h"
#include "dtrain/data/batch.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/engine/internal/block_runner.h"
#include "dtrain/parallel/engine/internal/gradient_accumulator.h"

namespace dtrain::parallel {

/// Input and callbacks of an action list.
struct ExecutorInput {
  /// Microbatches by id. Actions of a missing microbatch are skipped, but the data axis gathers and
  /// reduces units around them.
  std::span<const data::Batch> microbatches;
  /// Gradient of each token's loss; unused without a backward pass.
  double loss_gradient = 0;
  /// Receives the per-token losses (B, T) of each microbatch, on the ranks that report them.
  std::function<void(MicrobatchId microbatch, const at::Tensor& losses)> on_losses;
  /// Called once on every rank, after the last on_losses of the list.
  std::function<void()> on_last_losses;
};

/// Kinds of tensors that neighbouring stages exchange.
enum class TransferKind {
  activations,  ///< to the next stage; from the last stage to the first one's next chunk
  gradients,    ///< in the opposite direction
};

/// Sends and receives activations and gradients between pipeline stages. Sends do not block, and
/// receives are posted early, so a stage waits only for the tensor it needs next. Each kind uses
/// its own group, because messages between two ranks are ordered within a group.
///
/// Throws:  members throw what Work::wait throws.
/// Threads: one.
class Transfers {
 public:
  /// The groups must outlive this.
  explicit Transfers(const mesh::MeshGroups& groups) : groups_(groups) {}

  /// Posts the receive of the tensor that `block` needs for a microbatch. Messages match receives
  /// in posting order.
  ///
  /// Async: take() returns the tensor.
  void post_receive(TransferKind kind, BlockId block, MicrobatchId microbatch,
                    at::IntArrayRef shape, const at::TensorOptions& options);
  /// Waits for the tensor of a posted receive; undefined if none was posted.
  [[nodiscard]] at::Tensor take(TransferKind kind, BlockId block, MicrobatchId microbatch);
  /// Starts to send a tensor.
  ///
  /// Async: holds `value` until it is sent.
  void send(TransferKind kind, const at::Tensor& value);
  /// Blocks until all sends have completed.
  void finish();

 private:
  struct InFlightTensor {
    at::Tensor tensor;
    comm::Work work;
  };
  using Key = std::pair<BlockId, MicrobatchId>;

  [[nodiscard]] comm::ProcessGroup& group(TransferKind kind) const;

  const mesh::MeshGroups& groups_;
  std::map<Key, InFlightTensor> receives_[2];  // by kind
  std::deque<InFlightTensor> sends_;
};

/// Owns a rank's parameters, gradients and the activations of a step.
///
/// Collective: step() and evaluate(), over all groups.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class Executor {
 public:
  /// `setup` must outlive this.
  explicit Executor(const EngineSetup& setup);

  /// Predicts an executor's memory. microbatch: shape of a rank's microbatch, in the compute dtype.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model, const EngineOptions& options,
                                         const model::BatchShape& microbatch);

  /// Runs a training step up to its reduced gradients.
  void step(const ExecutorInput& input);
  /// Runs one forward pass, without dropout and graphs.
  void evaluate(const ExecutorInput& input);
  /// Blocks until all sends to other stages have completed.
  void finish_sends() { transfers_.finish(); }

  [[nodiscard]] const DataAxis& axis() const { return axis_; }
  [[nodiscard]] DataAxis& axis() { return axis_; }
  [[nodiscard]] ParameterStore& parameters() { return axis_.parameters(); }
  /// Sets a callback for every intermediate value that blocks report; empty: none.
  void set_tap(model::Tap tap) { runner_.set_tap(std::move(tap)); }
  /// Sets the object that records the start of each pass; null: none.
  void set_activity(base::Activity* activity) { activity_ = activity; }

 private:
  void run(const DataAxis::ScheduledActions& list, const ExecutorInput& input);
  void run_action(const DataAxis::ScheduledActions& list, std::size_t index,
                  const ExecutorInput& input);
  void execute(const Action& action, const data::Batch& batch, const ExecutorInput& input);
  /// Posts the receive of a tensor for a microbatch of this size.
  void post_receive(TransferKind kind, const Action& action, const data::Batch& batch);
  void sum_over_stages();

  const EngineSetup& setup_;
  DataAxis axis_;
  GradientAccumulator accumulator_;
  BlockRunner runner_;
  std::unique_ptr<PassRunner> graphs_;  // null: no device graphs
  PassRunner* active_ = &runner_;       // graphs_ in a training step, if there are any
  Transfers transfers_;
  base::Activity* activity_ = nullptr;
};

}  // namespace dtrain::parallel
