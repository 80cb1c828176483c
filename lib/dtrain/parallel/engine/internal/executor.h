// Executes lists of actions: runs blocks, lets the data axis gather and reduce around them, and
// passes values between stages.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "dtrain/base/launcher_link.h"
#include "dtrain/comm/world.h"
#include "dtrain/data/batch.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/engine/internal/block_runner.h"

namespace dtrain::parallel {

/// Input and output of a list of actions.
struct ExecutorInput {
  /// Where one is missing, its passes and messages are left out, and what the data axis does around
  /// them is done.
  std::span<const data::Batch> microbatches;
  /// The gradient of each token's loss, where there is a backward pass.
  double loss_gradient = 0;
  /// Given the per-token losses (B, T) of each microbatch, on the ranks that report them.
  std::function<void(MicrobatchId microbatch, const at::Tensor& losses)> on_losses;
  /// Called on every rank after the last on_losses of any.
  std::function<void()> on_last_losses;
};

/// Which of two neighbours' values.
enum class Channel {
  activations,  ///< from each stage to the next; from the last to the first, to its next chunk
  gradients,    ///< the other way
};

/// Sends and receives activations and gradients between the stages of a pipeline. Sends do not
/// block, and room for what will come is offered early, so that a stage waits for nothing but what
/// it needs next. Each channel has a group of its own, as messages from one rank to another keep
/// their order within a group.
///
/// Throws:  members what Work::wait throws.
/// Threads: one.
class Transfers {
 public:
  /// The groups must outlive this.
  explicit Transfers(const mesh::MeshGroups& groups) : groups_(groups) {}

  /// Offers room for the value that block `block` needs for a microbatch; values come in the order
  /// in which room was offered.
  ///
  /// Async: take() returns the value.
  void offer(Channel channel, BlockId block, MicrobatchId microbatch, at::IntArrayRef shape,
             const at::TensorOptions& options);
  /// Waits for the value that room was offered for; undefined where none was.
  [[nodiscard]] at::Tensor take(Channel channel, BlockId block, MicrobatchId microbatch);
  /// Async: `value` is kept until it has gone.
  void send(Channel channel, const at::Tensor& value);
  /// Returns when everything has gone.
  void finish();

 private:
  struct Value {
    at::Tensor tensor;
    comm::Work work;
  };
  using Key = std::pair<BlockId, MicrobatchId>;

  [[nodiscard]] comm::ProcessGroup& group(Channel channel) const;

  const mesh::MeshGroups& groups_;
  std::map<Key, Value> offered_[2];  // by channel
  std::deque<Value> going_;
};

/// Owns a rank's parameters and gradients, and whatever a step keeps.
///
/// Collective: step and evaluate, over all groups.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class Executor {
 public:
  /// `setup` must outlive this.
  explicit Executor(const EngineSetup& setup);

  /// The memory of an executor with these options. microbatch: of a rank, in the compute dtype.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model, const EngineOptions& options,
                                         const model::BatchShape& microbatch);

  /// A training step, to its reduced gradients.
  void step(const ExecutorInput& input);
  /// One forward pass without dropout and without a graph.
  void evaluate(const ExecutorInput& input);
  /// Returns when all that went to other stages has left.
  void finish_sends() { transfers_.finish(); }

  [[nodiscard]] const DataAxis& axis() const { return axis_; }
  [[nodiscard]] DataAxis& axis() { return axis_; }
  [[nodiscard]] ParameterStore& parameters() { return axis_.parameters(); }
  /// Called with every intermediate value that blocks report; empty: not called.
  void set_tap(model::Tap tap) { runner_.set_tap(std::move(tap)); }
  /// Where passes are noted; null: nowhere.
  void set_activity(base::Activity* activity) { activity_ = activity; }

 private:
  void run(const DataAxis::Pass& pass, const ExecutorInput& input);
  void run_action(const DataAxis::Pass& pass, std::size_t index, const ExecutorInput& input);
  void execute(const Action& action, const data::Batch& batch, const ExecutorInput& input);
  /// Offers room for what another stage sends for a microbatch of this size.
  void offer(Channel channel, const Action& action, const data::Batch& batch);
  void sum_over_stages();

  const EngineSetup& setup_;
  DataAxis axis_;
  BlockRunner runner_;
  std::unique_ptr<PassRunner> graphs_;  // null: none
  PassRunner* active_ = &runner_;       // the graphs in a step, where there are any
  Transfers transfers_;
  base::Activity* activity_ = nullptr;
};

}  // namespace dtrain::parallel
