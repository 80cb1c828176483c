// What the step engine asks of an optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

/// State of an optimizer with one value for each element of a parameter.
struct NamedArena {
  std::string name;           ///< as in checkpoints: "exp_avg"
  const param::Arena* arena;  ///< of the optimizer's shard
};

/// What an optimizer updates, and how its state is made.
struct OptimizerShard {
  const param::ArenaLayout& layout;
  std::span<const param::ParameterSpec> specs;
  std::int64_t shard = 0;
  at::ScalarType dtype = at::kFloat;  ///< of parameters, gradients and state
  const param::ArenaAllocator& allocate;
};

/// Elements that are updated alike.
struct UpdateGroup {
  param::ElementRange range;
  double weight_decay;
};

/// The elements that `shard` owns of all parameters that are not frozen, in the longest ranges that
/// share a weight decay; parameters whose spec says no decay have none.
[[nodiscard]] std::vector<UpdateGroup> update_groups(const OptimizerShard& shard,
                                                     double weight_decay,
                                                     std::span<const param::ParameterId> frozen);

/// Zeros for each element of the shard.
[[nodiscard]] param::Arena state_arena(const OptimizerShard& shard);

/// Updates the elements that one shard owns. An element's result does not depend on the shard it is
/// in.
///
/// Threads: one.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates `parameters` in place; `gradients` are read only. Both hold the shard's elements at
  /// least.
  virtual void step(const param::Arena& parameters, const param::Arena& gradients,
                    double learning_rate) = 0;

  /// The arenas share memory with the optimizer, so that state can be saved and loaded through
  /// them.
  [[nodiscard]] virtual std::vector<NamedArena> state() const = 0;
  /// (1) float32: updates so far; shared likewise.
  [[nodiscard]] virtual const at::Tensor& num_updates() const = 0;
};

}  // namespace dtrain::optim
