#include "dtrain/model/dropout_bits.h"

#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dtrain::model {
namespace {

constexpr std::uint32_t kCounters = 8;  // of a block

#if defined(__x86_64__)
#define DTRAIN_AVX2 __attribute__((target("avx2")))

struct HighLow {
  __m256i high;
  __m256i low;
};

// Eight products of 32 by 32 bits: the even and the odd lanes apart, then both halves put together
// again.
DTRAIN_AVX2 inline HighLow wide_product(__m256i a, __m256i factor) {
  constexpr int kOddLanes = 0xAA;
  const __m256i even = _mm256_mul_epu32(a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, kOddLanes),
          _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), kOddLanes)};
}

DTRAIN_AVX2 inline __m256i broadcast(std::uint32_t value) {
  return _mm256_set1_epi32(static_cast<int>(value));
}

DTRAIN_AVX2 void random_halves_avx2(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                                    std::uint32_t* halves) {
  const __m256i factor0 = broadcast(base::kPhiloxMultiplier0);
  const __m256i factor1 = broadcast(base::kPhiloxMultiplier1);
  __m256i a =
      _mm256_add_epi32(broadcast(block * kCounters), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i b = broadcast(row.position);
  __m256i c = broadcast(row.sample_low);
  __m256i d = broadcast(row.level_and_sample_high);
  for (int round = 0; round < base::kPhiloxRounds; ++round) {
    const HighLow product0 = wide_product(a, factor0);
    const HighLow product1 = wide_product(c, factor1);
    a = _mm256_xor_si256(_mm256_xor_si256(product1.high, b), broadcast(key[0]));
    c = _mm256_xor_si256(_mm256_xor_si256(product0.high, d), broadcast(key[1]));
    b = product1.low;
    d = product0.low;
    key[0] += base::kPhiloxWeyl0;
    key[1] += base::kPhiloxWeyl1;
  }
  const __m256i low_half = broadcast(0xFFFF);
  auto* out = reinterpret_cast<__m256i*>(halves);
  for (const __m256i word : {a, b, c, d}) {
    _mm256_storeu_si256(out++, _mm256_and_si256(word, low_half));
    _mm256_storeu_si256(out++, _mm256_srli_epi32(word, 16));
  }
}
#endif

}  // namespace

void random_halves_portable(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                            std::uint32_t* halves) {
  for (std::uint32_t i = 0; i < kCounters; ++i) {
    const auto words = base::philox(
        {block * kCounters + i, row.position, row.sample_low, row.level_and_sample_high}, key);
    for (std::uint32_t word = 0; word < 4; ++word) {
      halves[(2 * word) * kCounters + i] = words[word] & 0xFFFF;
      halves[(2 * word + 1) * kCounters + i] = words[word] >> 16;
    }
  }
}

void random_halves(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                   std::uint32_t* halves) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return random_halves_avx2(block, row, key, halves);
#endif
  random_halves_portable(block, row, key, halves);
}

}  // namespace dtrain::model
