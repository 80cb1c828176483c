#include "dtrain/optim/internal/update_rules.h"

#include <array>

#include "dtrain/optim/update_element.h"

namespace dtrain::optim {
namespace {

template <typename T>
[[gnu::always_inline]] inline void adamw_loop(std::int64_t count, const AdamWFactors<T>& by,
                                              T* __restrict weight, const T* __restrict gradient,
                                              T* __restrict first, T* __restrict second) {
  const AdamWFactors<T> f = by;
  for (std::int64_t i = 0; i < count; ++i) {
    adamw_element(f, gradient[i], weight[i], first[i], second[i]);
  }
}

template <typename T>
[[gnu::always_inline]] inline void momentum_loop(std::int64_t count, const SgdFactors<T>& by,
                                                 T* __restrict weight, const T* __restrict gradient,
                                                 T* __restrict buffer) {
  const SgdFactors<T> f = by;
  for (std::int64_t i = 0; i < count; ++i) {
    momentum_element(f, gradient[i], weight[i], buffer[i]);
  }
}

template <typename T>
[[gnu::always_inline]] inline void plain_loop(std::int64_t count, const SgdFactors<T>& by,
                                              T* __restrict weight, const T* __restrict gradient) {
  const SgdFactors<T> f = by;
  for (std::int64_t i = 0; i < count; ++i) {
    sgd_element(f, gradient[i], weight[i]);
  }
}

// Compiled for each instruction set, since the build itself targets the baseline. All operations are
// correctly rounded by IEEE 754 and none are fused (-ffp-contract=off), so vectors of any width, the
// scalar remainder of a loop and every instruction set give equal bits. CMakeLists.txt compiles this
// file with -fno-math-errno, because otherwise a square root prevents vectorization.
#define DTRAIN_FOR(name, attribute)                                                      \
  template <typename T>                                                                  \
  attribute void adamw_##name(const AdamWElements<T>& of, const AdamWFactors<T>& by) {   \
    adamw_loop(of.count, by, of.weight, of.gradient, of.first_moment, of.second_moment); \
  }                                                                                      \
  template <typename T>                                                                  \
  attribute void sgd_##name(const SgdElements<T>& of, const SgdFactors<T>& by) {         \
    if (of.buffer == nullptr) return plain_loop(of.count, by, of.weight, of.gradient);   \
    momentum_loop(of.count, by, of.weight, of.gradient, of.buffer);                      \
  }
DTRAIN_FOR(any, )
DTRAIN_FOR(avx2, __attribute__((target("avx2"))))
DTRAIN_FOR(avx512, __attribute__((target("avx512f"))))
#undef DTRAIN_FOR

constexpr std::array kInstructionSets{InstructionSet::any, InstructionSet::avx2,
                                      InstructionSet::avx512};

}  // namespace

std::span<const InstructionSet> instruction_sets() noexcept {
  static const std::size_t count = [] {
    if (!__builtin_cpu_supports("avx2")) return 1;
    return __builtin_cpu_supports("avx512f") ? 3 : 2;
  }();
  return std::span(kInstructionSets).first(count);
}

template <typename T>
void update_adamw(const AdamWElements<T>& elements, const AdamWFactors<T>& factors,
                  InstructionSet set) {
  constexpr std::array kUpdates{adamw_any<T>, adamw_avx2<T>, adamw_avx512<T>};
  kUpdates[static_cast<std::size_t>(set)](elements, factors);
}

template <typename T>
void update_sgd(const SgdElements<T>& elements, const SgdFactors<T>& factors, InstructionSet set) {
  constexpr std::array kUpdates{sgd_any<T>, sgd_avx2<T>, sgd_avx512<T>};
  kUpdates[static_cast<std::size_t>(set)](elements, factors);
}

template void update_adamw(const AdamWElements<float>&, const AdamWFactors<float>&, InstructionSet);
template void update_adamw(const AdamWElements<double>&, const AdamWFactors<double>&,
                           InstructionSet);
template void update_sgd(const SgdElements<float>&, const SgdFactors<float>&, InstructionSet);
template void update_sgd(const SgdElements<double>&, const SgdFactors<double>&, InstructionSet);

}  // namespace dtrain::optim
