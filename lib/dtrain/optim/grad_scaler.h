// Dynamic loss scaling for float16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::optim {

/// The loss scale, which grows while gradients do not overflow and shrinks when they do.
///
/// In each step the loss is multiplied by scale() before the backward pass. Gradients are summed
/// over all ranks and checked for overflow (by the global norm, equal on all ranks), then
/// multiplied by 1 / scale() before clipping. update() adjusts the scale. A step with an overflow
/// changes no weight. Scales are powers of two, so scaling is exact.
///
/// Source: Micikevicius et al., Mixed Precision Training (ICLR 2018), with PyTorch's defaults.
class GradScaler {
 public:
  static constexpr double kInitialScale = 65536;
  static constexpr double kSmallestScale = 1;
  static constexpr std::int64_t kGrowthInterval = 2000;  ///< steps without overflow

  GradScaler();

  [[nodiscard]] double scale() const;
  /// Number of skipped steps since the run began.
  [[nodiscard]] std::int64_t num_skipped() const;

  /// Ends a step. If found_overflow (equal on all ranks), halves the scale and counts the step as
  /// skipped. The scale doubles after kGrowthInterval consecutive steps without overflow.
  ///
  /// Throws: Error{numerics} if a step overflowed at the smallest scale.
  void update(bool found_overflow);

  /// (3) float64: scale, steps since the scale last changed, skipped steps. Shares memory with this
  /// object, for saving and loading.
  [[nodiscard]] const at::Tensor& state() const { return state_; }

 private:
  at::Tensor state_;
};

}  // namespace dtrain::optim
