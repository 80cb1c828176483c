#include "dtrain/model/token_sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <ranges>
#include <span>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/philox.h"
#include "dtrain/model/vector_math.h"

namespace dtrain::model {
namespace {

// Throws Error{numerics} if a logit is not finite.
double highest_of_finite(const at::Tensor& logits) {
  const auto [lowest, highest] = at::aminmax(logits);  // NaN if one of the logits is
  for (const at::Tensor& each : {lowest, highest}) {
    const auto value = each.item<double>();
    if (!std::isfinite(value)) {
      base::fail(base::ErrorKind::numerics,
                 "the model computes a logit of {}: its weights are damaged or training diverged; "
                 "use another model file",
                 value);
    }
  }
  return highest.item<double>();
}

std::span<const double> values_in(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<double>(), static_cast<std::size_t>(tensor.numel())};
}

// A uniform value in [0, 1), a multiple of 2^-53.
double uniform(std::uint64_t seed, std::int64_t index) {
  const auto counter = static_cast<std::uint64_t>(index);
  const auto words = base::philox(
      {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
      base::philox_key(seed, base::RandomPurpose::sampling));
  return ((words[0] >> 5) * 0x1p26 + (words[1] >> 6)) / 0x1p53;
}

// Ascending ids of the tokens that may be sampled.
using TokenIds = std::vector<std::uint32_t>;

constexpr std::size_t kLanes = 16;  // of partial sums

// The sum of `values`, in an order that vector instructions can follow.
double sum_of(std::span<const double> values) {
  std::array<double, kLanes> lanes{};
  std::size_t at = 0;
  for (; at + kLanes <= values.size(); at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[at + lane];
  }
  for (std::size_t lane = 0; at + lane < values.size(); ++lane) lanes[lane] += values[at + lane];
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

// Returns the position at which the cumulative weight exceeds `share` of the total.
std::size_t draw(std::span<const double> weights, double share) {
  constexpr std::size_t kBlock = 256;  // whose sums are skipped
  std::vector<double> sums;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    sums.push_back(sum_of(weights.subspan(begin, std::min(kBlock, weights.size() - begin))));
  }
  while (sums.size() > 1 && sums.back() == 0) sums.pop_back();
  double left = share * sum_of(sums);
  std::size_t block = 0;
  while (block + 1 < sums.size() && left >= sums[block]) left -= sums[block++];
  std::size_t chosen = block * kBlock;
  for (std::size_t at = chosen; at < weights.size(); ++at) {
    if (weights[at] == 0) continue;
    chosen = at;  // the last one with weight, if rounding leaves more than all weights
    if (left < weights[at]) break;
    left -= weights[at];
  }
  return chosen;
}

// Selects the k most likely tokens; ties prefer lower ids.
class Likeliest {
 public:
  Likeliest(std::span<const double> logits, std::size_t k) {
    // A heap of k logits costs one comparison for almost every token if k is small.
    constexpr std::size_t kHeapShare = 64;
    std::vector<double> top(k);
    if (k <= logits.size() / kHeapShare) {
      std::partial_sort_copy(logits.begin(), logits.end(), top.begin(), top.end(),
                             std::greater<>());
    } else {
      top.assign(logits.begin(), logits.end());
      std::nth_element(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(k) - 1, top.end(),
                       std::greater<>());
      top.resize(k);
    }
    lowest_ = top.back();
    num_lowest_ = std::ranges::count(top, lowest_);
  }

  // Call once per token, in order of ids.
  [[nodiscard]] bool takes(double logit) {
    return logit > lowest_ || (logit == lowest_ && num_lowest_-- > 0);
  }

 private:
  double lowest_;
  std::ptrdiff_t num_lowest_;  // tokens with logit lowest_ still to accept
};

// The ids of the top_k most likely tokens, in ascending order.
TokenIds likeliest_tokens(std::span<const double> logits, std::size_t top_k) {
  Likeliest likeliest(logits, top_k);
  TokenIds tokens;
  tokens.reserve(top_k);
  for (std::uint32_t token = 0; token < logits.size(); ++token) {
    if (likeliest.takes(logits[token])) tokens.push_back(token);
  }
  return tokens;
}

struct TokenWeight {
  std::uint32_t token;
  double weight;
};

// Divides the weights from `lightest` to 1 into intervals, numbered from 1 down. The bit pattern of a
// positive number grows with the number, about as its logarithm does, so intervals of bit patterns
// suit both flat and peaked distributions. Bit patterns are compared instead of weights because the
// result of comparing half the weights is unpredictable: it must not become a branch.
class Intervals {
 public:
  static constexpr std::size_t kMost = 4096;

  explicit Intervals(double lightest) : lightest_(std::bit_cast<std::uint64_t>(lightest)) {
    while ((kHighest - lightest_) >> shift_ >= kMost) ++shift_;
  }

  // The last interval has all lighter weights, too.
  [[nodiscard]] std::size_t last() const { return (kHighest - lightest_) >> shift_; }
  [[nodiscard]] std::size_t operator()(double weight) const {
    return (kHighest - std::max(std::bit_cast<std::uint64_t>(weight), lightest_)) >> shift_;
  }

  // Sets all weights that are not in an interval before `end` to 0; returns those of interval `end`.
  [[nodiscard]] std::vector<TokenWeight> cut(std::size_t end, std::span<double> weights) const {
    const std::uint64_t heaviest = kHighest - (end << shift_);  // of interval `end`
    const std::uint64_t width = end < last() ? std::uint64_t{1} << shift_ : heaviest;
    std::vector<TokenWeight> removed;
    for (std::uint32_t token = 0; token < weights.size(); ++token) {
      double& weight = weights[token];
      const auto bits = std::bit_cast<std::uint64_t>(weight);
      const std::uint64_t below = heaviest - bits;  // wraps around for heavier weights
      if (below < width) removed.push_back({.token = token, .weight = weight});
      const std::uint64_t is_heavier = below >> 63;
      weight = std::bit_cast<double>(bits & (0 - is_heavier));
    }
    return removed;
  }

 private:
  static constexpr auto kHighest = std::bit_cast<std::uint64_t>(1.0);

  std::uint64_t lightest_;
  int shift_ = 0;
};

// Sets the weights of all tokens to 0, except those of the most likely ones whose weights first sum
// to at least top_p of the total. weights: 1 for the most likely token. Only tokens of the interval
// in which the nucleus ends are sorted.
void keep_nucleus(std::span<const double> logits, double top_p, std::span<double> weights) {
  const double total = sum_of(weights);
  const double wanted = top_p * total;
  // All lighter weights together are less than what the nucleus leaves out.
  const double lightest = (1 - top_p) * total / (2 * static_cast<double>(weights.size()));
  const Intervals interval_of(lightest);
  std::vector<double> sums(interval_of.last() + 1);
  for (const double weight : weights) sums[interval_of(weight)] += weight;
  std::size_t end = 0;
  double sum = 0;  // of the weights before interval `end`
  while (end < interval_of.last() && sum + sums[end] < wanted) sum += sums[end++];

  std::vector<TokenWeight> candidates = interval_of.cut(end, weights);
  std::ranges::stable_sort(candidates, std::ranges::greater(),
                           [&](const TokenWeight& each) { return logits[each.token]; });
  for (const auto& [token, weight] : candidates) {
    if (sum >= wanted) break;
    weights[token] = weight;
    sum += weight;
  }
}

}  // namespace

// Draws among tokens with these logits; returns the position of one.
std::size_t TokenSampler::sample_position(const at::Tensor& logits, double highest,
                                          std::int64_t index) {
  warm_up_vector_math();
  at::sub_out(weights_, logits, at::scalar_tensor(highest, logits.options()));
  if (rule_.temperature != 1) weights_.div_(rule_.temperature);
  weights_.exp_();
  const std::span<double> weights(weights_.mutable_data_ptr<double>(),
                                  static_cast<std::size_t>(weights_.numel()));
  if (rule_.top_p < 1) keep_nucleus(values_in(logits), rule_.top_p, weights);
  return draw(weights, uniform(rule_.seed, index));
}

std::int64_t TokenSampler::sample(const at::Tensor& logits, std::int64_t index) {
  if (!wide_.defined()) {
    wide_ = at::empty(logits.sizes(), at::kDouble);
    weights_ = at::empty({0}, at::kDouble);
  }
  wide_.copy_(logits);
  const double highest = highest_of_finite(wide_);
  const std::span<const double> values = values_in(wide_);
  if (rule_.temperature == 0) return std::ranges::find(values, highest) - values.begin();
  const auto top_k = static_cast<std::size_t>(rule_.top_k);
  if (top_k == 0 || top_k >= values.size()) {
    return static_cast<std::int64_t>(sample_position(wide_, highest, index));
  }
  const TokenIds tokens = likeliest_tokens(values, top_k);
  std::vector<double> kept;
  kept.reserve(tokens.size());
  for (const std::uint32_t token : tokens) kept.push_back(values[token]);
  const at::Tensor of_kept = at::from_blob(kept.data(), {std::ssize(kept)}, at::kDouble);
  return tokens[sample_position(of_kept, highest, index)];
}

void continue_tokens(Generator& generator, std::span<const std::int64_t> prompt,
                     const SamplingRule& rule, std::int64_t count,
                     const std::function<bool(std::int64_t)>& on_token) {
  TokenSampler sampler(rule);
  at::Tensor logits = generator.read_prompt(prompt);  // (V)
  for (std::int64_t index = 0; index < count; ++index) {
    const std::int64_t token = sampler.sample(logits, index);
    if (!on_token(token)) return;
    if (index + 1 < count) logits = generator.step(token);
  }
}

}  // namespace dtrain::model
