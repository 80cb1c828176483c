#include "dtrain/model/token_sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <ranges>
#include <span>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/philox.h"
#include "dtrain/model/vector_math.h"

namespace dtrain::model {
namespace {

struct Extremes {
  double lowest;
  double highest;
};

// The lowest and highest of `values`; NaN if one of them is.
Extremes extremes_of(const at::Tensor& values) {
  const auto [lowest, highest] = at::aminmax(values);
  return {lowest.item<double>(), highest.item<double>()};
}

Extremes finite_extremes_of(const at::Tensor& logits) {
  const Extremes extremes = extremes_of(logits);
  for (const double value : {extremes.lowest, extremes.highest}) {
    if (!std::isfinite(value)) {
      base::fail(base::ErrorKind::numerics,
                 "the model computes a logit of {}: its weights are damaged or training diverged; "
                 "use another model file",
                 value);
    }
  }
  return extremes;
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

// Ascending positions in the logits, or in the weights, of the tokens that may be sampled.
using Positions = std::vector<std::uint32_t>;

// The sum of `values`, in an order that vector instructions can follow.
double sum_of(std::span<const double> values) {
  constexpr std::size_t kLanes = 16;
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
Positions likeliest_tokens(std::span<const double> logits, std::size_t top_k) {
  Likeliest likeliest(logits, top_k);
  Positions tokens;
  tokens.reserve(top_k);
  for (std::uint32_t token = 0; token < logits.size(); ++token) {
    if (likeliest.takes(logits[token])) tokens.push_back(token);
  }
  return tokens;
}

// Divides weights into intervals, numbered from the highest weight on. The bit pattern of a positive
// number grows with the number, about as its logarithm does, so intervals of bit patterns suit both
// flat and peaked distributions.
class Intervals {
 public:
  static constexpr std::size_t kCount = 4096;

  explicit Intervals(const Extremes& weights)
      : highest_(std::bit_cast<std::uint64_t>(weights.highest)) {
    // Weights far below the highest share the last interval.
    constexpr std::uint64_t kWidestSpan = std::uint64_t{32} << 52;  // a factor of 2^32
    const std::uint64_t span =
        std::min(highest_ - std::bit_cast<std::uint64_t>(weights.lowest), kWidestSpan);
    const std::uint64_t most = kCount - 1;
    shift_ = 0;
    while (span >> shift_ > most) ++shift_;
  }

  [[nodiscard]] std::size_t operator()(double weight) const {
    const std::uint64_t below = highest_ - std::bit_cast<std::uint64_t>(weight);
    return std::min<std::uint64_t>(below >> shift_, kCount - 1);
  }

 private:
  std::uint64_t highest_;
  int shift_;
};

// The intervals of some weights, and the sum of the weights in each.
class Histogram {
 public:
  // extremes: of the weights at these positions.
  Histogram(std::span<const double> weights, const Positions& positions, const Extremes& extremes)
      : interval_of_(extremes), sums_(Intervals::kCount) {
    for (const std::uint32_t at : positions) sums_[interval_of_(weights[at])] += weights[at];
    while (last_ > 0 && sums_[last_] == 0) --last_;
  }

  // Returns the positions of positive weights in the interval at which the cumulative weight,
  // highest first, exceeds `left`; subtracts the weight before it from `left`.
  [[nodiscard]] Positions narrow(std::span<const double> weights, const Positions& positions,
                                 double& left) const {
    std::size_t chosen = 0;
    // Falls back to the last interval if rounding raises `left` above the total weight.
    while (chosen < last_ && left >= sums_[chosen]) left -= sums_[chosen++];
    Positions members;
    for (const std::uint32_t at : positions) {
      if (interval_of_(weights[at]) == chosen && weights[at] > 0) members.push_back(at);
    }
    return members;
  }

 private:
  Intervals interval_of_;
  std::vector<double> sums_;
  std::size_t last_ = Intervals::kCount - 1;  // the last interval with weight
};

// Returns the last of the most likely tokens whose weights first sum to at least `least`, without
// sorting all tokens. candidates: contain these tokens.
std::size_t last_of_nucleus(std::span<const double> logits, std::span<const double> weights,
                            Positions candidates, double least) {
  constexpr std::size_t kFew = 64;
  // A sum is at least `least` if it exceeds the number before it.
  double left = std::nextafter(least, 0.0);
  while (candidates.size() > kFew) {
    const auto [lowest, highest] = std::ranges::minmax(
        candidates | std::views::transform([&](std::uint32_t at) { return weights[at]; }));
    if (lowest == highest) break;
    candidates =
        Histogram(weights, candidates, {lowest, highest}).narrow(weights, candidates, left);
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(),
                           [&](std::uint32_t at) { return logits[at]; });
  auto last = candidates.begin();
  while (last + 1 != candidates.end() && left >= weights[*last]) left -= weights[*last++];
  return *last;
}

// The most likely tokens whose weights first sum to at least top_p of the total.
Positions nucleus(std::span<const double> logits, std::span<const double> weights, double top_p) {
  const double total = sum_of(weights);
  // All lighter weights together are less than what the nucleus leaves out.
  const double lightest = (1 - top_p) * total / (2 * static_cast<double>(weights.size()));
  Positions candidates;
  for (std::uint32_t at = 0; at < weights.size(); ++at) {
    if (weights[at] >= lightest) candidates.push_back(at);
  }
  const std::size_t last = last_of_nucleus(logits, weights, candidates, top_p * total);
  std::erase_if(candidates, [&](std::uint32_t at) {
    return logits[at] < logits[last] || (logits[at] == logits[last] && at > last);
  });
  return candidates;
}

// Returns a position in `logits`, float64 on the CPU. highest: of the logits.
std::size_t sample_position(const at::Tensor& logits, double highest, const SamplingRule& rule,
                            std::int64_t index) {
  warm_up_vector_math();
  const at::Tensor scaled = (logits - highest).div_(rule.temperature).exp_();
  const std::span<const double> weights = values_in(scaled);
  const double share = uniform(rule.seed, index);
  if (rule.top_p >= 1) return draw(weights, share);
  const Positions tokens = nucleus(values_in(logits), weights, rule.top_p);
  std::vector<double> kept;
  for (const std::uint32_t token : tokens) kept.push_back(weights[token]);
  return tokens[draw(kept, share)];
}

}  // namespace

std::int64_t sample_token(const at::Tensor& logits, const SamplingRule& rule, std::int64_t index) {
  const at::Tensor wide = logits.to(at::kDouble).cpu().contiguous();
  const double highest = finite_extremes_of(wide).highest;
  const std::span<const double> values = values_in(wide);
  if (rule.temperature == 0) return std::ranges::find(values, highest) - values.begin();
  const auto top_k = static_cast<std::size_t>(rule.top_k);
  if (top_k == 0 || top_k >= values.size()) {
    return static_cast<std::int64_t>(sample_position(wide, highest, rule, index));
  }
  const Positions tokens = likeliest_tokens(values, top_k);
  std::vector<double> kept;
  kept.reserve(tokens.size());
  for (const std::uint32_t token : tokens) kept.push_back(values[token]);
  const at::Tensor of_kept = at::from_blob(kept.data(), {std::ssize(kept)}, at::kDouble);
  return tokens[sample_position(of_kept, highest, rule, index)];
}

void continue_tokens(Generator& generator, std::span<const std::int64_t> prompt,
                     const SamplingRule& rule, std::int64_t count,
                     const std::function<bool(std::int64_t)>& on_token) {
  at::Tensor logits = generator.read_prompt(prompt);  // (V)
  for (std::int64_t index = 0; index < count; ++index) {
    const std::int64_t token = sample_token(logits, rule, index);
    if (!on_token(token)) return;
    if (index + 1 < count) logits = generator.step(token);
  }
}

}  // namespace dtrain::model
