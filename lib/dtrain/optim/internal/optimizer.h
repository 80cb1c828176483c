// The interface of an optimizer, as the step engine uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

/// State of an optimizer with one value for each element of a parameter.
struct NamedArena {
  std::string name;           ///< as in checkpoints: "exp_avg"
  const param::Arena* arena;  ///< of what the optimizer's shard trains
};

/// The elements that an optimizer updates, and how its state is made.
struct OptimizerShard {
  const param::ArenaLayout& layout;
  const param::ParameterSpecs& specs;
  param::ShardId shard;
  at::ScalarType dtype = at::kFloat;  ///< of parameters, gradients and state
  const param::ArenaAllocator& allocate;
  c10::Device device = at::kCPU;  ///< of all of them, and of what `allocate` gives

  /// Zeros for each element that the shard trains.
  [[nodiscard]] param::Arena state_arena() const {
    return param::Arena::of_trained_shard(layout, shard, dtype, allocate);
  }
};

/// Elements that are updated alike.
struct UpdateGroup {
  param::ElementRange range;
  double weight_decay;
};

/// Learns which elements an update comes to, so that it can bring them to where it runs, and back.
class UpdateWindow {
 public:
  virtual ~UpdateWindow() = default;

  /// `range` is updated now, `next` (possibly empty) after it.
  virtual void before(param::ElementRange range, param::ElementRange next) = 0;
  virtual void after(param::ElementRange range) = 0;
  /// The range being updated, of an arena of the step.
  [[nodiscard]] virtual at::Tensor values(const param::Arena& arena, param::ElementRange range) = 0;
};

/// Updates the elements that one shard trains. An element's result does not depend on the shard it
/// is in.
///
/// Threads: one.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates `parameters` in place; `gradients` are read only. Both hold at least what the shard
  /// trains. A window (may be null) sees ranges of at most kWindowElements. updated_to(end), if
  /// any, is called when all that the shard trains below `end` has its new values (on a device:
  /// when they are under way), so that it can be sent while the others are updated.
  ///
  /// may_update: () bool, read where the update runs; where it is false nothing changes, and on the
  /// CPU no element is touched.
  void step(const param::Arena& parameters, const param::Arena& gradients, double learning_rate,
            const at::Tensor& may_update, UpdateWindow* window = nullptr,
            const std::function<void(std::int64_t end)>& updated_to = {});
  static constexpr std::int64_t kWindowElements = std::int64_t{1} << 20;

  /// The arenas share memory with the optimizer, so that state can be saved and loaded through
  /// them.
  [[nodiscard]] virtual std::vector<NamedArena> state() const = 0;
  /// (1) float32: updates so far; shared likewise.
  [[nodiscard]] const at::Tensor& num_updates() const { return num_updates_; }

 protected:
  /// Parameters whose spec says no decay have none.
  Optimizer(const OptimizerShard& shard, double weight_decay);

  /// What the update of a group reads beside its gradients; the tensors lie where it runs.
  struct StepInputs {
    const at::Tensor& learning_rate;  ///< () float64
    const at::Tensor& may_update;     ///< () bool
    UpdateWindow* window;             ///< may be null

    /// The elements where the update reads and writes them.
    [[nodiscard]] at::Tensor values(const param::Arena& arena, param::ElementRange range) const {
      return window == nullptr ? arena.slice(range) : window->values(arena, range);
    }
  };
  /// One step of the group's elements; num_updates() counts it already.
  virtual void update(const UpdateGroup& group, const param::Arena& parameters,
                      const param::Arena& gradients, const StepInputs& inputs) = 0;

 private:
  std::vector<UpdateGroup> groups_;  // the longest ranges that share a weight decay
  at::Tensor num_updates_;
  at::Tensor learning_rate_;
};

}  // namespace dtrain::optim
