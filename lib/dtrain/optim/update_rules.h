// Update rules of the optimizers, element by element. An element gets the same bits wherever the
// range that it is updated in begins and ends, and on every instruction set.
#pragma once

#include <cstdint>

namespace dtrain::optim {

/// Fewest elements that are worth a thread of their own.
inline constexpr std::int64_t kUpdateGrain = std::int64_t{1} << 15;

/// `count` elements of an AdamW update; no array overlaps another.
template <typename T>
struct AdamWElements {
  std::int64_t count;
  T* weight;
  const T* gradient;
  T* first_moment;
  T* second_moment;
};

/// The numbers of one AdamW update that all its elements share.
template <typename T>
struct AdamWFactors {
  T keep;         ///< 1 - learning rate * weight decay
  T beta1;        ///< how much of the first moment stays
  T first_gain;   ///< 1 - beta1
  T beta2;        ///< how much of the second moment stays
  T second_gain;  ///< 1 - beta2
  T root_scale;   ///< 1 / sqrt(1 - beta2^step)
  T eps;
  T rate;  ///< learning rate / (1 - beta1^step)
};

/// first = beta1 * first + first_gain * gradient
/// second = beta2 * second + second_gain * gradient * gradient
/// weight = keep * weight - rate * first / (sqrt(second) * root_scale + eps)
///
/// Threads: any; calls on different elements may run at once.
void update_adamw(const AdamWElements<float>& elements, const AdamWFactors<float>& factors);
void update_adamw(const AdamWElements<double>& elements, const AdamWFactors<double>& factors);

/// `count` elements of an SGD update; no array overlaps another.
template <typename T>
struct SgdElements {
  std::int64_t count;
  T* weight;
  const T* gradient;
  T* buffer;  ///< null without momentum
};

/// The numbers of one SGD update that all its elements share.
template <typename T>
struct SgdFactors {
  T decay;     ///< weight decay
  T momentum;  ///< how much of the buffer stays
  T rate;      ///< learning rate
};

/// buffer = momentum * buffer + (gradient + decay * weight)
/// weight = weight - rate * buffer
/// Without momentum the sum in brackets takes the place of the buffer.
///
/// Threads: any; calls on different elements may run at once.
void update_sgd(const SgdElements<float>& elements, const SgdFactors<float>& factors);
void update_sgd(const SgdElements<double>& elements, const SgdFactors<double>& factors);

}  // namespace dtrain::optim
