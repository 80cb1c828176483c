// How far results may be from the reference's, by dtype and by the reference's own rounding noise.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dtrain/commands/internal/fixture.h"
#include "dtrain/config/config.h"

namespace dtrain::commands {

/// The least tolerance of one step, a relative error: 32 unit roundoffs of float32. See tests/golden/README.md.
inline constexpr double kOneStepTolerance = 32 * 0x1p-24;

/// The tolerances of a trajectory.
struct TrajectoryTolerances {
  double early_loss = 0;  ///< of the first steps, before errors accumulate
  double loss = 0;
  double grad_norm = 0;
  double final_loss = 0;
  double final_l2 = 0;
};

/// The largest errors of checks that pass.
class Tolerances {
 public:
  /// compute: dtype of the blocks. `fixture` must outlive this object.
  Tolerances(config::Dtype dtype, at::ScalarType compute, const Fixture& fixture)
      : dtype_(dtype), compute_(compute), fixture_(fixture) {}

  /// Returns the tolerance of the check of that name: "loss", "logits", the name of an activation,
  /// or "grad." and the name of a parameter.
  [[nodiscard]] double of_one_step(const std::string& check) const;
  /// Returns the tolerances of a trajectory of the reference; noise: Trajectory::noise.
  [[nodiscard]] TrajectoryTolerances of_trajectory(double noise) const;
  /// Returns the tolerance of the losses of a trajectory that transformers computed.
  [[nodiscard]] double of_hugging_face() const;

 private:
  /// The tolerance of a loss after updates, from that of a float32 run.
  [[nodiscard]] double after_updates(double of_float32) const;
  /// Returns whether the blocks compute in 16 bits.
  [[nodiscard]] bool is_low() const { return at::isReducedFloatingType(compute_); }
  [[nodiscard]] double unit_roundoff() const { return compute_ == at::kHalf ? 0x1p-11 : 0x1p-8; }

  config::Dtype dtype_;
  at::ScalarType compute_;
  const Fixture& fixture_;
};

}  // namespace dtrain::commands
