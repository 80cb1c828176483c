// From reduced gradients to new masters: norm, clipping, loss scale, optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/optim/global_norm.h"
#include "dtrain/optim/grad_scaler.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Owns the optimizer's state and the loss's scale.
///
/// Throws:  collective members what Work::wait throws.
/// Threads: one.
class Updater {
 public:
  /// `setup` must outlive this.
  explicit Updater(const EngineSetup& setup);

  /// The optimizer's state.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model, const EngineOptions& options);

  /// What an update of offloaded values takes where it runs.
  ///
  /// Units: bytes.
  [[nodiscard]] static std::int64_t window_bytes(const model::Model& model,
                                                 const EngineOptions& options);

  /// The factor of the gradients of a step; 1 without loss scaling.
  [[nodiscard]] double loss_scale() const { return scaler() ? scaler_.scale() : 1.0; }
  /// Null without loss scaling.
  [[nodiscard]] const optim::GradScaler* scaler() const {
    return setup_.options.precision.scales_loss ? &scaler_ : nullptr;
  }

  /// The norm of the whole model's values, () float64; equal on all ranks.
  ///
  /// Collective: over the shards, the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor norm_of(const param::Arena& values) const;

  /// Takes the loss's scale out of the gradients, scales them so that their global norm is at most
  /// max_norm (0: as they are) and returns the norm before, () float64. A norm that is not finite
  /// leaves them alone.
  ///
  /// Collective: as norm_of.
  [[nodiscard]] at::Tensor clip(const param::Arena& gradients, double max_norm) const;

  /// With loss scaling: adjusts the scale to a step of this gradient norm, and says whether it has
  /// overflowed, so that no update has followed. Else false.
  ///
  /// Throws: Error{numerics} where the smallest scale overflows.
  [[nodiscard]] bool adjust_scale(double grad_norm);

  /// Updates this rank's masters where may_update, () bool, is true. updated_to: as
  /// Optimizer::step's.
  void update(const param::Arena& masters, const param::Arena& gradients, double learning_rate,
              const at::Tensor& may_update,
              const std::function<void(std::int64_t end)>& updated_to);

  [[nodiscard]] const optim::Optimizer& optimizer() const { return *optimizer_; }
  /// The masters, and all that the optimizer keeps of them.
  [[nodiscard]] std::vector<const param::Arena*> with_state(const param::Arena& masters) const;

 private:
  [[nodiscard]] at::Tensor sums_of(const param::Arena& values) const;

  const EngineSetup& setup_;
  optim::GlobalNorm norm_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_;
};

}  // namespace dtrain::parallel
