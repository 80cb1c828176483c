// Element-wise update rules of the optimizers. An element's bits depend neither on the instruction
// set nor on the range of elements that is updated with it.
#pragma once

#include <cstdint>
#include <span>

namespace dtrain::optim {

/// Minimum number of elements per thread.
inline constexpr std::int64_t kUpdateGrain = std::int64_t{1} << 15;

/// The instruction sets that the loops are compiled for, in order of vector width.
enum class InstructionSet { any, avx2, avx512 };

/// Returns the sets that this CPU supports; the last one is the default.
[[nodiscard]] std::span<const InstructionSet> instruction_sets() noexcept;

/// The arrays of an AdamW update of `count` elements; they must not overlap.
template <typename T>
struct AdamWElements {
  std::int64_t count;
  T* weight;
  const T* gradient;
  T* first_moment;
  T* second_moment;
};

/// The factors of one AdamW update, equal for all elements.
template <typename T>
struct AdamWFactors {
  T keep;         ///< 1 - learning rate * weight decay
  T beta1;        ///< decay rate of the first moment
  T first_gain;   ///< 1 - beta1
  T beta2;        ///< decay rate of the second moment
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

/// The arrays of an SGD update of `count` elements; they must not overlap.
template <typename T>
struct SgdElements {
  std::int64_t count;
  T* weight;
  const T* gradient;
  T* buffer;  ///< null without momentum
};

/// The factors of one SGD update, equal for all elements.
template <typename T>
struct SgdFactors {
  T decay;     ///< weight decay
  T momentum;  ///< decay rate of the buffer
  T rate;      ///< learning rate
};

/// buffer = momentum * buffer + (gradient + decay * weight)
/// weight = weight - rate * buffer
/// Without momentum: weight = weight - rate * (gradient + decay * weight).
///
/// T: float or double.
/// Threads: any; calls on different elements may run at once.
template <typename T>
void update_sgd(const SgdElements<T>& elements, const SgdFactors<T>& factors,
                InstructionSet set = instruction_sets().back());

}  // namespace dtrain::optim
