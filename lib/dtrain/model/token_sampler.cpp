#include "dtrain/model/token_sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
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

// Positions in the logits and weights of the tokens that may be sampled.
using Positions = std::vector<std::uint32_t>;

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
  // positions: a random-access range. extremes: of their weights.
  Histogram(std::span<const double> weights, const auto& positions, const Extremes& extremes)
      : interval_of_(extremes), sums_(Intervals::kCount) {
    for (const std::uint32_t at : positions) sums_[interval_of_(weights[at])] += weights[at];
    while (last_ > 0 && sums_[last_] == 0) --last_;
  }

  [[nodiscard]] double total() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }

  // Returns the positions of positive weights in the interval at which the cumulative weight,
  // highest first, exceeds `left`; subtracts the weight before it from `left`.
  [[nodiscard]] Positions narrow(std::span<const double> weights, const auto& positions,
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

// Tokens in descending order of their logits, without sorting them: it is known only around the
// places that are looked up.
class Ranking {
 public:
  // weights: exp((logits - highest) / temperature).
  Ranking(const at::Tensor& logits, const at::Tensor& weights)
      : logits_(values_in(logits)),
        weights_(values_in(weights)),
        whole_(weights_, all(), extremes_of(weights)) {}

  [[nodiscard]] double total() const { return whole_.total(); }

  struct Place {
    std::size_t position;
    double through;  // the cumulative weight up to and including `position`
  };
  // Returns the first position at which the cumulative weight exceeds `weight`.
  [[nodiscard]] Place find(double weight) const {
    constexpr std::size_t kFew = 64;
    double left = weight;
    Positions near = whole_.narrow(weights_, all(), left);
    while (near.size() > kFew) {
      const auto [lowest, highest] = std::ranges::minmax(
          near | std::views::transform([&](std::uint32_t at) { return weights_[at]; }));
      if (lowest == highest) break;
      near = Histogram(weights_, near, {lowest, highest}).narrow(weights_, near, left);
    }
    std::ranges::stable_sort(near, std::ranges::greater(),
                             [&](std::uint32_t at) { return logits_[at]; });
    auto chosen = near.begin();
    while (chosen + 1 != near.end() && left >= weights_[*chosen]) left -= weights_[*chosen++];
    return {.position = *chosen, .through = weight - left + weights_[*chosen]};
  }

 private:
  [[nodiscard]] std::ranges::iota_view<std::uint32_t, std::uint32_t> all() const {
    return {0, static_cast<std::uint32_t>(weights_.size())};
  }

  std::span<const double> logits_;
  std::span<const double> weights_;
  Histogram whole_;
};

// The total weight of the most likely tokens whose weights first sum to at least top_p of the total.
double nucleus_weight(const Ranking& ranking, double top_p) {
  const double least = top_p * ranking.total();
  // A sum is at least `least` if it exceeds the number before it.
  return ranking.find(std::nextafter(least, 0.0)).through;
}

// Returns a position in `logits`, float64 on the CPU. highest: of the logits.
std::size_t sample_position(const at::Tensor& logits, double highest, const SamplingRule& rule,
                            std::int64_t index) {
  warm_up_vector_math();
  const at::Tensor weights = (logits - highest).div_(rule.temperature).exp_();
  const Ranking ranking(logits, weights);
  const double total = rule.top_p < 1 ? nucleus_weight(ranking, rule.top_p) : ranking.total();
  return ranking.find(uniform(rule.seed, index) * total).position;
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
