#include "dtrain/model/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "dtrain/base/error.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "dtrain/base/philox.h"
#include "dtrain/device/operator.h"
#include "dtrain/model/dropout_element.h"

namespace dtrain::model {
namespace {

constexpr std::uint32_t kCounters = 8;  // per block

#if defined(__x86_64__)
#define DTRAIN_AVX2 __attribute__((target("avx2")))

struct HighLow {
  __m256i high;
  __m256i low;
};

// Eight 32 x 32-bit products: multiplies even and odd lanes separately, then recombines the halves.
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
#undef DTRAIN_AVX2
#endif

// The portable version, with base::philox.
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

// Compiled for each instruction set, since the build itself targets the baseline.
#define DTRAIN_ALL_CPUS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))

#define DTRAIN_SELECT(scalar_t)                                                             \
  DTRAIN_ALL_CPUS void select(const std::uint32_t* random, std::int64_t count,              \
                              DropRule<scalar_t> rule, const scalar_t* in, scalar_t* out) { \
    for (std::int64_t i = 0; i < count; ++i) {                                              \
      out[i] = dropped(in[i], is_kept(random[i], rule), rule);                              \
    }                                                                                       \
  }
DTRAIN_SELECT(float)
DTRAIN_SELECT(double)
DTRAIN_SELECT(at::BFloat16)
DTRAIN_SELECT(at::Half)
#undef DTRAIN_SELECT

// One (sample, position) row of one head: `count` neurons from global neuron `first`.
template <typename scalar_t>
void drop_row(const scalar_t* in, scalar_t* out, std::int64_t first, std::int64_t count,
              const DropoutRow& row, base::PhiloxKey key, DropRule<scalar_t> rule) {
  std::array<std::uint32_t, kDropoutBlock> random;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t neuron = first + done;
    const std::int64_t skip = neuron % kDropoutBlock;
    const std::int64_t take = std::min(kDropoutBlock - skip, count - done);
    random_halves(static_cast<std::uint32_t>(neuron / kDropoutBlock), row, key, random.data());
    select(random.data() + skip, take, rule, in + done, out + done);
    done += take;
  }
}

at::Tensor drop_on_cpu(const at::Tensor& x, double probability, std::int64_t seed,
                       std::int64_t level, const at::Tensor& first_sample,
                       std::int64_t first_neuron) {
  const DropoutRows rows{.samples = x.size(1),
                         .positions = x.size(2),
                         .neurons = x.size(3),
                         .level = level,
                         .first_sample = first_sample.const_data_ptr<std::int64_t>(),
                         .first_neuron = first_neuron};
  const base::PhiloxKey key =
      base::philox_key(static_cast<std::uint64_t>(seed), base::RandomPurpose::dropout);
  at::Tensor out = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    const auto* in_data = x.const_data_ptr<scalar_t>();
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    const auto rule = drop_rule<scalar_t>(probability);
    at::parallel_for(0, x.numel() / rows.neurons, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t plane = r / rows.positions;  // one head of one sample
        const DropoutRow row = rows.counters_of(plane % rows.samples, r % rows.positions);
        drop_row(in_data + r * rows.neurons, out_data + r * rows.neurons,
                 rows.first_of(plane / rows.samples), rows.neurons, row, key, rule);
      }
    });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def(
      "dropout(Tensor x, float probability, int seed, int level, Tensor first_sample, int "
      "first_neuron) -> Tensor");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("dropout", drop_on_cpu); }

at::Tensor apply_mask(const at::Tensor& x, double probability, const DropoutOffsets& place) {
  static const device::Operator<decltype(drop_on_cpu)> kDropout("dtrain::dropout");
  return kDropout(x, probability, static_cast<std::int64_t>(place.seed), place.level,
                  place.first_sample, place.first_neuron);
}

class CounterDropout : public torch::autograd::Function<CounterDropout> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            double probability, const DropoutOffsets& place) {
    ctx->save_for_backward({place.first_sample});
    ctx->saved_data["probability"] = probability;
    ctx->saved_data["place"] = std::vector<std::int64_t>{static_cast<std::int64_t>(place.seed),
                                                         place.level, place.first_neuron};
    return apply_mask(x, probability, place);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto place = ctx->saved_data["place"].toIntVector();
    at::Tensor grad = apply_mask(grads[0].contiguous(), ctx->saved_data["probability"].toDouble(),
                                 {.seed = static_cast<std::uint64_t>(place[0]),
                                  .level = place[1],
                                  .first_sample = ctx->get_saved_variables()[0],
                                  .first_neuron = place[2]});
    return {grad, {}, {}};
  }
};

}  // namespace

void random_halves(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                   std::uint32_t* halves) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return random_halves_avx2(block, row, key, halves);
#endif
  random_halves_portable(block, row, key, halves);
}

at::Tensor dropout(const at::Tensor& x, double probability, const DropoutOffsets& place) {
  DTRAIN_CHECK(x.dim() == 4 && x.is_contiguous());
  if (probability == 0) return x;
  DTRAIN_CHECK(place.first_sample.scalar_type() == at::kLong);
  return CounterDropout::apply(x, probability, place);
}

}  // namespace dtrain::model
