// Scales the loss for float16, so that small gradients are not lost; gradients are scaled back
// before they are used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::optim {

/// The scale of the loss, which grows while no gradient overflows and falls when one does.
///
/// A step goes: the loss is seeded with scale(); gradients are summed over all ranks and checked
/// (all ranks from the same norm); they are multiplied by 1 / scale() before clipping; update()
/// learns how it went. A step whose gradients overflowed changes no weight. Scales are powers of
/// two, so that scaling changes no digit.
///
/// Source: Micikevicius et al., Mixed Precision Training (ICLR 2018), with PyTorch's defaults.
class GradScaler {
 public:
  static constexpr double kInitialScale = 65536;
  static constexpr double kSmallestScale = 1;
  static constexpr std::int64_t kGrowthInterval = 2000;  ///< steps without overflow

  GradScaler();

  [[nodiscard]] double scale() const;
  /// Steps left out since the run began.
  [[nodiscard]] std::int64_t num_skipped() const;

  /// Ends a step: found_overflow, the same on all ranks, halves the scale and counts the step as
  /// left out; the scale doubles after kGrowthInterval steps in a row without.
  ///
  /// Throws: Error{numerics} where a step overflowed at the smallest scale.
  void update(bool found_overflow);

  /// (3) float64: scale, steps since the scale last changed, steps left out; shared, so that state
  /// can be saved and loaded through it.
  [[nodiscard]] const at::Tensor& state() const { return state_; }

 private:
  at::Tensor state_;
};

}  // namespace dtrain::optim
