#include "dtrain/model/token_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
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
                 "the model computes a logit of {}: its weights are damaged or training diverged; "
                 "use another model file",
                 value);
    }
  }
  return values;
}

// A uniform value in [0, 1), a multiple of 2^-53.
double uniform(std::uint64_t seed, std::int64_t index) {
  const auto counter = static_cast<std::uint64_t>(index);
  const auto words = base::philox(
      {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
      base::philox_key(seed, base::RandomPurpose::sampling));
  return ((words[0] >> 5) * 0x1p26 + (words[1] >> 6)) / 0x1p53;
}

// A token that may be sampled.
struct Candidate {
  std::size_t token;
  double logit;
  double weight;  // exp((logit - highest logit) / temperature), positive
};
using Candidates = std::vector<Candidate>;

// Selects the k most likely tokens; ties prefer lower ids.
class Likeliest {
 public:
  Likeliest(const std::vector<double>& logits, std::size_t k) {
    if (k == 0 || k >= logits.size()) return;
    std::vector<double> sorted(logits);
    const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(k) - 1;
    std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
    lowest_ = *last;
    num_lowest_ = std::count(sorted.begin(), last + 1, lowest_);
  }

  // Call once per token, in order of ids.
  [[nodiscard]] bool takes(double logit) {
    return logit > lowest_ || (logit == lowest_ && num_lowest_-- > 0);
  }

 private:
  double lowest_ = -std::numeric_limits<double>::infinity();
  std::ptrdiff_t num_lowest_ = 0;  // tokens with logit lowest_ still to accept
};

Candidates candidates_of(const std::vector<double>& logits, const SamplingRule& rule) {
  const double highest = *std::ranges::max_element(logits);
  Likeliest likeliest(logits, static_cast<std::size_t>(rule.top_k));
  Candidates candidates;
  candidates.reserve(logits.size());
  for (std::size_t token = 0; token < logits.size(); ++token) {
    if (!likeliest.takes(logits[token])) continue;
    const double weight = std::exp((logits[token] - highest) / rule.temperature);
    if (weight > 0) candidates.push_back({token, logits[token], weight});
  }
  return candidates;
}

// Divides the logits into intervals and keeps the candidates of the interval in which the cumulative
// weight, most likely first, exceeds `left`; subtracts the weight before it from `left`. Returns
// false if all logits are equal. Linear time; sorting a large vocabulary would take far longer.
bool narrow(Candidates& candidates, double& left) {
  constexpr std::size_t kIntervals = 1024;
  const auto [low, high] = std::ranges::minmax(candidates, {}, &Candidate::logit);
  const double top = high.logit / 2;
  const double span = top - low.logit / 2;  // halved, because the difference may overflow
  if (!(span > 0)) return false;
  const auto interval_of = [&](const Candidate& each) {
    const double place = (top - each.logit / 2) / span * kIntervals;
    return std::min(static_cast<std::size_t>(place), kIntervals - 1);
  };
  std::array<double, kIntervals> sums{};
  for (const Candidate& each : candidates) sums[interval_of(each)] += each.weight;
  std::size_t chosen = 0;
  // Falls back to the last interval if rounding raises `left` above the total weight.
  while (chosen + 1 < kIntervals && left >= sums[chosen]) left -= sums[chosen++];
  std::erase_if(candidates, [&](const Candidate& each) { return interval_of(each) != chosen; });
  return true;
}

// Returns the token at which the cumulative weight, most likely first, exceeds `left`.
std::size_t token_at(Candidates candidates, double left) {
  constexpr std::size_t kFew = 64;
  while (candidates.size() > kFew && narrow(candidates, left)) {
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::logit);
  auto chosen = candidates.begin();
  while (chosen + 1 != candidates.end() && left >= chosen->weight) left -= (chosen++)->weight;
  return chosen->token;
}

}  // namespace

std::int64_t sample_token(const at::Tensor& logits, const SamplingRule& rule, std::int64_t index) {
  const std::vector<double> values = finite_values(logits);
  if (rule.temperature == 0) return std::ranges::max_element(values) - values.begin();
  Candidates candidates = candidates_of(values, rule);
  double total = 0;
  for (const Candidate& each : candidates) total += each.weight;
  const double drawn = uniform(rule.seed, index) * total;
  return static_cast<std::int64_t>(token_at(std::move(candidates), drawn));
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
