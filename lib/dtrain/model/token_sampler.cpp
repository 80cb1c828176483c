#include "dtrain/model/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/philox.h"

namespace dtrain::model {
namespace {

std::vector<double> finite_values(const at::Tensor& logits) {
  const at::Tensor wide = logits.to(at::kDouble).cpu().contiguous();
  const auto* data = wide.const_data_ptr<double>();
  std::vector<double> values(data, data + wide.numel());
  for (const double value : values) {
    if (!std::isfinite(value)) {
      base::fail(base::ErrorKind::numerics,
                 "the model gives a logit of {}: its weights are damaged or were trained to "
                 "overflow; use another model file",
                 value);
    }
  }
  return values;
}

/// Uniform in [0, 1), a multiple of 2^-53.
double uniform(std::uint64_t seed, std::int64_t index) {
  const auto counter = static_cast<std::uint64_t>(index);
  const auto words = base::philox(
      {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
      base::philox_key(seed, base::RandomPurpose::sampling));
  constexpr double kTwoToThe26 = 67108864.0;
  constexpr double kTwoToThe53 = 9007199254740992.0;
  return ((words[0] >> 5) * kTwoToThe26 + (words[1] >> 6)) / kTwoToThe53;
}

}  // namespace

std::int64_t sample_token(const at::Tensor& logits, const SamplingRule& rule, std::int64_t index) {
  const std::vector<double> values = finite_values(logits);
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  if (rule.temperature == 0) return static_cast<std::int64_t>(order.front());
  if (rule.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(rule.top_k)));

  std::vector<double> reached;  // sums of the first weights
  double total = 0;
  for (const std::size_t token : order) {
    total += std::exp((values[token] - values[order.front()]) / rule.temperature);
    reached.push_back(total);
  }
  const double drawn = uniform(rule.seed, index) * total;
  // Rounding can lift the product to the total itself: then the last token.
  const auto chosen = std::upper_bound(reached.begin(), reached.end() - 1, drawn);
  return static_cast<std::int64_t>(order[static_cast<std::size_t>(chosen - reached.begin())]);
}

void continue_tokens(Generator& generator, std::span<const std::int64_t> prompt,
                     const SamplingRule& rule, std::int64_t count,
                     const std::function<bool(std::int64_t)>& on_token) {
  at::Tensor logits;  // (V)
  for (const std::int64_t token : prompt) logits = generator.step(token);
  for (std::int64_t index = 0; index < count; ++index) {
    const std::int64_t token = sample_token(logits, rule, index);
    if (!on_token(token)) return;
    if (index + 1 < count) logits = generator.step(token);
  }
}

}  // namespace dtrain::model
