// AdamW over arenas: one fused call for each run of parameters that decay alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.1;               ///< decoupled; on parameters whose spec says decay
  std::vector<param::ParameterId> frozen;  ///< never updated nor decayed
};

/// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), through
/// LibTorch's fused kernel, whose result for an element does not depend on the range it is called
/// with (ranges start at multiples of 64).
class AdamW {
 public:
  /// All arenas share `layout` and the parameters' dtype.
  AdamW(const param::ArenaLayout& layout, std::span<const param::ParameterSpec> specs,
        at::ScalarType dtype, const param::ArenaAllocator& allocate, AdamWOptions options);

  /// Updates `parameters` in place; `gradients` are read only.
  void step(const param::Arena& parameters, const param::Arena& gradients, double learning_rate);

  [[nodiscard]] const param::Arena& first_moment() const { return first_moment_; }
  [[nodiscard]] const param::Arena& second_moment() const { return second_moment_; }
  /// (1) float32: updates so far; shared, so that state can be saved and loaded through it.
  [[nodiscard]] const at::Tensor& num_updates() const { return num_updates_; }

 private:
  struct Group {
    param::ElementRange range;
    double weight_decay;
  };

  AdamWOptions options_;
  std::vector<Group> groups_;
  param::Arena first_moment_;
  param::Arena second_moment_;
  at::Tensor num_updates_;
};

}  // namespace dtrain::optim
