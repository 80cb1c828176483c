#include "dtrain/optim/update_rules.h"

#include <cmath>

// Compiled for each instruction set, since the build itself assumes none. Each operation is one
// that IEEE 754 rounds correctly, and none are fused (-ffp-contract=off), so that vectors of any
// width, the scalar end of a loop and every instruction set agree. CMakeLists.txt compiles this
// file with -fno-math-errno, without which a square root keeps a loop from using vectors.
#define DTRAIN_ALL_CPUS __attribute__((target_clones("avx512f", "avx2", "default")))

namespace dtrain::optim {
namespace {

template <typename T>
[[gnu::always_inline]] inline void adamw_loop(std::int64_t count, const AdamWFactors<T>& by,
                                              T* __restrict weight, const T* __restrict gradient,
                                              T* __restrict first, T* __restrict second) {
  const AdamWFactors<T> f = by;
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = gradient[i];
    first[i] = f.beta1 * first[i] + f.first_gain * g;
    second[i] = f.beta2 * second[i] + f.second_gain * g * g;
    const T root = std::sqrt(second[i]) * f.root_scale + f.eps;
    weight[i] = f.keep * weight[i] - f.rate * first[i] / root;
  }
}

template <typename T>
[[gnu::always_inline]] inline void momentum_loop(std::int64_t count, const SgdFactors<T>& by,
                                                 T* __restrict weight, const T* __restrict gradient,
                                                 T* __restrict buffer) {
  const SgdFactors<T> f = by;
  for (std::int64_t i = 0; i < count; ++i) {
    buffer[i] = f.momentum * buffer[i] + (gradient[i] + f.decay * weight[i]);
    weight[i] = weight[i] - f.rate * buffer[i];
  }
}

template <typename T>
[[gnu::always_inline]] inline void plain_loop(std::int64_t count, const SgdFactors<T>& by,
                                              T* __restrict weight, const T* __restrict gradient) {
  const SgdFactors<T> f = by;
  for (std::int64_t i = 0; i < count; ++i) {
    weight[i] = weight[i] - f.rate * (gradient[i] + f.decay * weight[i]);
  }
}

template <typename T>
[[gnu::always_inline]] inline void adamw(const AdamWElements<T>& of, const AdamWFactors<T>& by) {
  adamw_loop(of.count, by, of.weight, of.gradient, of.first_moment, of.second_moment);
}

template <typename T>
[[gnu::always_inline]] inline void sgd(const SgdElements<T>& of, const SgdFactors<T>& by) {
  if (of.buffer == nullptr) return plain_loop(of.count, by, of.weight, of.gradient);
  momentum_loop(of.count, by, of.weight, of.gradient, of.buffer);
}

}  // namespace

DTRAIN_ALL_CPUS void update_adamw(const AdamWElements<float>& elements,
                                  const AdamWFactors<float>& factors) {
  adamw(elements, factors);
}

DTRAIN_ALL_CPUS void update_adamw(const AdamWElements<double>& elements,
                                  const AdamWFactors<double>& factors) {
  adamw(elements, factors);
}

DTRAIN_ALL_CPUS void update_sgd(const SgdElements<float>& elements,
                                const SgdFactors<float>& factors) {
  sgd(elements, factors);
}

DTRAIN_ALL_CPUS void update_sgd(const SgdElements<double>& elements,
                                const SgdFactors<double>& factors) {
  sgd(elements, factors);
}

}  // namespace dtrain::optim
