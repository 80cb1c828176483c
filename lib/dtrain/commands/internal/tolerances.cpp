#include "dtrain/commands/internal/tolerances.h"

#include <algorithm>
#include <cmath>

#include "dtrain/commands/internal/hugging_face_fixture.h"

namespace dtrain::commands {
namespace {

// A fixture's float32 noise is the difference between the reference's float32 and float64 numbers.
// The tolerance is three times that, and at least these and kOneStepTolerance.
constexpr double kNoiseFactor = 3;
constexpr double kEarlyLossTolerance = 5e-5;
constexpr double kLossTolerance = 5e-4;
// In float64 only the rotary tables differ, equally on every CPU: our cosines are correctly rounded
// to float32, while the reference's library is sometimes off by one ulp. After 50 updates this
// changes a norm by up to 1e-5 and a loss by 7e-8.
constexpr double kFloat64LossTolerance = 1e-6;
constexpr double kFloat64NormTolerance = 1e-4;
// In 16 bits a forward pass of four layers rounds about 40 results. Independent errors grow with
// the square root of their number, 6.5; this is more than twice that.
constexpr double kLowRoundings = 16;

}  // namespace

double Tolerances::of_one_step(const std::string& check) const {
  // A relative error r flips about a fraction r of the ReLUs, and the error of a gradient is about
  // sqrt(r). A wrong constant factor exceeds that.
  if (is_low() && check.starts_with("grad.")) return std::sqrt(kLowRoundings * unit_roundoff());
  if (is_low()) return kLowRoundings * unit_roundoff();
  if (fixture_.tolerance) return *fixture_.tolerance;
  const auto noise = fixture_.noise.find(check);
  return noise == fixture_.noise.end() ? kOneStepTolerance
                                       : std::max(kOneStepTolerance, kNoiseFactor * noise->second);
}

TrajectoryTolerances Tolerances::of_trajectory(double noise) const {
  const double spread = std::max(kLossTolerance, kNoiseFactor * noise);
  return {
      .early_loss = after_updates(kEarlyLossTolerance),
      .loss = after_updates(spread),
      // Norms drift as the losses do, and by more: a ReLU that flips changes a gradient at once.
      .grad_norm =
          dtype_ == config::Dtype::float64 ? kFloat64NormTolerance : after_updates(10 * spread),
      // The expected value always comes from a float32 run.
      .final_loss = is_low() ? after_updates(spread) : spread,
      .final_l2 = after_updates(kLossTolerance)};
}

double Tolerances::after_updates(double of_float32) const {
  // Independent errors average out over the tokens of a batch. The rounding of the weights and of
  // the output matrix, which all tokens share, does not.
  if (is_low()) return of_float32 + 2 * unit_roundoff();
  return dtype_ == config::Dtype::float64 ? kFloat64LossTolerance : of_float32;
}

double Tolerances::of_hugging_face() const {
  const HuggingFaceTolerance tolerances;
  if (dtype_ == config::Dtype::float64) return tolerances.float64;
  return is_low() ? tolerances.float32 + 2 * unit_roundoff() : tolerances.float32;
}

}  // namespace dtrain::commands
