// Updates master weights from reduced gradients: gradient norm, clipping, loss scaling, optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/optim/global_norm.h"
#include "dtrain/optim/grad_scaler.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Owns the optimizer state and the loss scale.
///
/// Throws:  collective members throw what Work::wait throws.
/// Threads: one.
class Updater {
 public:
  /// `setup` must outlive this.
  explicit Updater(const EngineSetup& setup);

  /// Predicts the memory of the optimizer state.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model, const EngineOptions& options);

  /// Returns the device memory that an update of offloaded values needs.
  ///
  /// Units: bytes.
  [[nodiscard]] static std::int64_t window_bytes(const model::Model& model,
                                                 const EngineOptions& options);

  /// Returns the factor that the gradients contain; 1 without loss scaling.
  [[nodiscard]] double loss_scale() const { return scaler() ? scaler_.scale() : 1.0; }
  /// Returns null without loss scaling.
  [[nodiscard]] const optim::GradScaler* scaler() const {
    return setup_.options.precision.scales_loss ? &scaler_ : nullptr;
  }

  /// Returns the norm over the whole model, () float64; equal on all ranks.
  ///
  /// Collective: over the shards, the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor norm_of(const param::Arena& values) const;

  /// Divides the gradients by the loss scale, clips their global norm to max_norm (0: no clipping)
  /// and returns the norm before clipping, () float64. Does not clip if the norm is not finite.
  ///
  /// Collective: as norm_of.
  [[nodiscard]] at::Tensor clip(const param::Arena& gradients, double max_norm) const;

  /// Adjusts the loss scale after a step with this gradient norm. Returns whether gradients
  /// overflowed, so that the update was skipped; false without loss scaling.
  ///
  /// Throws: Error{numerics} if gradients overflow at the smallest scale.
  [[nodiscard]] bool adjust_scale(double grad_norm);

  /// Updates this rank's masters if may_update, () bool, is true. updated_to: as in
  /// Optimizer::step.
  void update(const param::Arena& masters, const param::Arena& gradients, double learning_rate,
              const at::Tensor& may_update,
              const std::function<void(std::int64_t end)>& updated_to);

  [[nodiscard]] const optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Returns the masters and the arenas of optimizer state.
  [[nodiscard]] std::vector<const param::Arena*> with_state(const param::Arena& masters) const;

 private:
  [[nodiscard]] at::Tensor sums_of(const param::Arena& values) const;

  const EngineSetup& setup_;
  optim::GlobalNorm norm_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_;
};

}  // namespace dtrain::parallel
