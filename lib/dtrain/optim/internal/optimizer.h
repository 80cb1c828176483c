// The optimizer interface of the step engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

/// Optimizer state with one value per parameter element.
struct NamedArena {
  std::string name;           ///< as in checkpoints: "exp_avg"
  const param::Arena* arena;  ///< the trained elements of the optimizer's shard
};

/// The elements that an optimizer updates, and how to allocate its state.
struct OptimizerShard {
  const param::ArenaLayout& layout;
  const param::ParameterSpecs& specs;
  param::ShardId shard;
  at::ScalarType dtype = at::kFloat;  ///< dtype of parameters, gradients and state
  const param::ArenaAllocator& allocate;
  c10::Device device = at::kCPU;  ///< device of all three, and of memory from `allocate`

  /// Allocates a zeroed arena for the trained elements of the shard.
  [[nodiscard]] param::Arena state_arena() const {
    return param::Arena::of_trained_shard(layout, shard, dtype, allocate);
  }
};

/// Elements that share a weight decay.
struct UpdateGroup {
  param::ElementRange range;
  double weight_decay;
};

/// Callbacks around the update of each range, which move offloaded values to compute memory and
/// back.
class UpdateWindow {
 public:
  virtual ~UpdateWindow() = default;

  /// Called before `range` is updated. next: the range updated after it; may be empty.
  virtual void before(param::ElementRange range, param::ElementRange next) = 0;
  virtual void after(param::ElementRange range) = 0;
  /// Returns the values of `arena` in the range being updated, in compute memory.
  [[nodiscard]] virtual at::Tensor values(const param::Arena& arena, param::ElementRange range) = 0;
};

/// Updates the trained elements of one shard. The result of an element does not depend on the
/// sharding.
///
/// Threads: one.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates `parameters` in place from `gradients`. Both hold at least the trained elements of the
  /// shard. With a window (may be null), ranges have at most kWindowElements. Calls
  /// updated_to(end), if set, when all trained elements below `end` have been updated (on a device:
  /// when their updates have been enqueued), so that they can be sent while the rest is updated.
  ///
  /// may_update: () bool, read on the device; if false, no element changes, and the CPU does not
  ///             access any.
  void step(const param::Arena& parameters, const param::Arena& gradients, double learning_rate,
            const at::Tensor& may_update, UpdateWindow* window = nullptr,
            const std::function<void(std::int64_t end)>& updated_to = {});
  static constexpr std::int64_t kWindowElements = std::int64_t{1} << 20;

  /// The arenas share memory with the optimizer, for saving and loading.
  [[nodiscard]] virtual std::vector<NamedArena> state() const = 0;
  /// Number of updates so far, (1) float32; shares memory with the optimizer.
  [[nodiscard]] const at::Tensor& num_updates() const { return num_updates_; }

 protected:
  /// weight_decay: applies to parameters with ParameterSpec::decay.
  Optimizer(const OptimizerShard& shard, double weight_decay);

  /// Further inputs of a group's update, on the device that runs it.
  struct StepInputs {
    const at::Tensor& learning_rate;  ///< () float64
    const at::Tensor& may_update;     ///< () bool
    UpdateWindow* window;             ///< may be null

    /// Returns the elements of `arena` in compute memory.
    [[nodiscard]] at::Tensor values(const param::Arena& arena, param::ElementRange range) const {
      return window == nullptr ? arena.slice(range) : window->values(arena, range);
    }
  };
  /// Updates the group's elements; num_updates() already includes this step.
  virtual void update(const UpdateGroup& group, const param::Arena& parameters,
                      const param::Arena& gradients, const StepInputs& inputs) = 0;

 private:
  std::vector<UpdateGroup> groups_;  // the longest ranges that share a weight decay
  at::Tensor num_updates_;
  at::Tensor learning_rate_;
};

}  // namespace dtrain::optim
