// The optimizers' update of one element; shared by the CPU and device kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "dtrain/base/device_function.h"
#include "dtrain/optim/internal/update_rules.h"

namespace dtrain::optim {

#if defined(__CUDA_ARCH__)
using Widest = double;  // GPUs have no wider type
#else
using Widest = long double;
#endif

/// Returns base^exponent by repeated multiplication, which rounds equally on every CPU; the result
/// of std::pow differs on CPUs with fused multiply-add.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION inline double power(double base, std::int64_t exponent) {
  Widest result = 1;
  for (Widest square = base; exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) result *= square;
  }
  return static_cast<double>(result);
}

/// The settings of an AdamW update.
struct AdamWSettings {
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
};

/// Computes the factors in float64 and rounds each once to T.
template <typename T>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION AdamWFactors<T> adamw_factors(const AdamWSettings& settings,
                                                                   double learning_rate,
                                                                   std::int64_t step) {
  const double first_correction = 1 - power(settings.beta1, step);
  const double second_correction = 1 - power(settings.beta2, step);
  return {.keep = static_cast<T>(1 - learning_rate * settings.weight_decay),
          .beta1 = static_cast<T>(settings.beta1),
          .first_gain = static_cast<T>(1 - settings.beta1),
          .beta2 = static_cast<T>(settings.beta2),
          .second_gain = static_cast<T>(1 - settings.beta2),
          .root_scale = static_cast<T>(1 / std::sqrt(second_correction)),
          .eps = static_cast<T>(settings.eps),
          .rate = static_cast<T>(learning_rate / first_correction)};
}

/// One element of update_adamw.
template <typename T>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline void adamw_element(const AdamWFactors<T>& f,
                                                                        T g, T& weight, T& first,
                                                                        T& second) {
  first = f.beta1 * first + f.first_gain * g;
  second = f.beta2 * second + f.second_gain * g * g;
  const T root = std::sqrt(second) * f.root_scale + f.eps;
  weight = f.keep * weight - f.rate * first / root;
}

/// One element of update_sgd with momentum.
template <typename T>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline void momentum_element(const SgdFactors<T>& f,
                                                                           T gradient, T& weight,
                                                                           T& buffer) {
  buffer = f.momentum * buffer + (gradient + f.decay * weight);
  weight = weight - f.rate * buffer;
}

/// One element of update_sgd without momentum.
template <typename T>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline void sgd_element(const SgdFactors<T>& f,
                                                                      T gradient, T& weight) {
  weight = weight - f.rate * (gradient + f.decay * weight);
}

}  // namespace dtrain::optim
