// Update rules of the optimizers, element by element. An element gets the same bits wherever the
// range that it is updated in begins and ends, and on every instruction set.
#pragma once

#include <cstdint>
#include <span>

namespace dtrain::optim {

/// Fewest elements that are worth a thread of their own.
inline constexpr std::int64_t kUpdateGrain = std::int64_t{1} << 15;

/// The instruction sets that the loops are compiled for, from narrow vectors to wide ones.
enum class InstructionSet { any, avx2, avx512 };

/// Returns the sets that this CPU has; the last one is the default.
[[nodiscard]] std::span<const InstructionSet> instruction_sets() noexcept;

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
/// T: float or double.
/// Threads: any; calls on different elements may run at once.
template <typename T>
void update_adamw(const AdamWElements<T>& elements, const AdamWFactors<T>& factors,
                  InstructionSet set = instruction_sets().back());

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
/// T: float or double.
/// Threads: any; calls on different elements may run at once.
template <typename T>
void update_sgd(const SgdElements<T>& elements, const SgdFactors<T>& factors,
                InstructionSet set = instruction_sets().back());

}  // namespace dtrain::optim
