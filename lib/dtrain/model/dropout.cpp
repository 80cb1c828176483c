#include "dtrain/model/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "dtrain/base/check.h"
#include "dtrain/base/philox.h"

namespace dtrain::model {
namespace {

constexpr std::int64_t kWordsPerGroup = 16;  // Philox counters computed side by side
constexpr std::int64_t kNeuronsPerWord = 8;  // 4 x 32 bits = 8 x 16 bits
constexpr std::int64_t kGroup = kWordsPerGroup * kNeuronsPerWord;

// What is common to the neurons of one (sample, level, position).
struct RowCounter {
  std::uint32_t position;
  std::uint32_t sample_low;
  std::uint32_t level_and_sample_high;
};

using Lanes = std::array<std::uint32_t, kWordsPerGroup>;

// Sixteen consecutive Philox counters at once, laid out so that the compiler uses vector
// instructions. The same arithmetic as base::philox, which the tests compare it with.
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) void random_group(
    std::uint32_t first_word, const RowCounter& row, base::PhiloxKey key, std::uint16_t* bits) {
  Lanes a;
  Lanes b;
  Lanes c;
  Lanes d;
  for (std::uint32_t i = 0; i < kWordsPerGroup; ++i) {
    a[i] = first_word + i;
    b[i] = row.position;
    c[i] = row.sample_low;
    d[i] = row.level_and_sample_high;
  }
  for (int round = 0; round < base::kPhiloxRounds; ++round) {
    for (std::uint32_t i = 0; i < kWordsPerGroup; ++i) {
      const std::uint64_t product0 = std::uint64_t{base::kPhiloxMultiplier0} * a[i];
      const std::uint64_t product1 = std::uint64_t{base::kPhiloxMultiplier1} * c[i];
      a[i] = static_cast<std::uint32_t>(product1 >> 32) ^ b[i] ^ key[0];
      c[i] = static_cast<std::uint32_t>(product0 >> 32) ^ d[i] ^ key[1];
      b[i] = static_cast<std::uint32_t>(product1);
      d[i] = static_cast<std::uint32_t>(product0);
    }
    key[0] += base::kPhiloxWeyl0;
    key[1] += base::kPhiloxWeyl1;
  }
  // Neuron word*8 + k takes half k of that word, the low half of each 32 bits first.
  for (std::uint32_t i = 0; i < kWordsPerGroup; ++i) {
    const std::array<std::uint32_t, 4> words{a[i], b[i], c[i], d[i]};
    for (std::uint32_t k = 0; k < 4; ++k) {
      bits[i * 8 + 2 * k] = static_cast<std::uint16_t>(words[k]);
      bits[i * 8 + 2 * k + 1] = static_cast<std::uint16_t>(words[k] >> 16);
    }
  }
}

template <typename scalar_t>
struct DropRule {
  std::uint16_t threshold;
  scalar_t scale;
};

// One (sample, position) row of one head: `count` neurons from global neuron `first`.
template <typename scalar_t>
void drop_row(const scalar_t* in, scalar_t* out, std::int64_t first, std::int64_t count,
              const RowCounter& row, base::PhiloxKey key, DropRule<scalar_t> rule) {
  std::array<std::uint16_t, kGroup> bits;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t neuron = first + done;
    const std::int64_t skip = neuron % kNeuronsPerWord;
    const std::int64_t take = std::min(kGroup - skip, count - done);
    random_group(static_cast<std::uint32_t>(neuron / kNeuronsPerWord), row, key, bits.data());
    const std::uint16_t* random = bits.data() + skip;
    for (std::int64_t i = 0; i < take; ++i) {
      out[done + i] = random[i] < rule.threshold ? scalar_t(0) : in[done + i] * rule.scale;
    }
    done += take;
  }
}

at::Tensor apply_mask(const at::Tensor& x, double probability, const DropoutPlace& place) {
  const std::int64_t samples = x.size(1);
  const std::int64_t positions = x.size(2);
  const std::int64_t neurons = x.size(3);
  const auto threshold = static_cast<std::uint16_t>(std::lround(probability * 65536.0));
  const double scale = 65536.0 / (65536.0 - threshold);
  const base::PhiloxKey key = base::philox_key(place.seed, base::RandomPurpose::dropout);
  at::Tensor out = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "dropout", [&] {
    const auto* in_data = x.const_data_ptr<scalar_t>();
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    const DropRule<scalar_t> rule{threshold, static_cast<scalar_t>(scale)};
    at::parallel_for(
        0, x.size(0) * samples * positions, 16, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            const std::int64_t position = r % positions;
            const std::int64_t sample = place.first_sample + r / positions % samples;
            const std::int64_t head = place.first_row + r / positions / samples;
            const RowCounter row{
                static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(sample),
                static_cast<std::uint32_t>(place.level << 16 | (sample >> 32 & 0xFFFF))};
            drop_row(in_data + r * neurons, out_data + r * neurons, head * neurons, neurons, row,
                     key, rule);
          }
        });
  });
  return out;
}

class CounterDropout : public torch::autograd::Function<CounterDropout> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            double probability, std::int64_t seed, std::int64_t level,
                            std::int64_t first_sample, std::int64_t first_row) {
    ctx->saved_data["probability"] = probability;
    ctx->saved_data["place"] = std::vector<std::int64_t>{seed, level, first_sample, first_row};
    return apply_mask(x, probability, place_of(seed, level, first_sample, first_row));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto place = ctx->saved_data["place"].toIntVector();
    at::Tensor grad = apply_mask(grads[0].contiguous(), ctx->saved_data["probability"].toDouble(),
                                 place_of(place[0], place[1], place[2], place[3]));
    return {grad, {}, {}, {}, {}, {}};
  }

 private:
  static DropoutPlace place_of(std::int64_t seed, std::int64_t level, std::int64_t first_sample,
                               std::int64_t first_row) {
    return {static_cast<std::uint64_t>(seed), level, first_sample, first_row};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double probability, const DropoutPlace& place) {
  DTRAIN_CHECK(x.dim() == 4 && x.is_contiguous());
  if (probability == 0) return x;
  return CounterDropout::apply(x, probability, static_cast<std::int64_t>(place.seed), place.level,
                               place.first_sample, place.first_row);
}

}  // namespace dtrain::model
