#include "dtrain/model/token_sampler.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "dtrain/base/philox.h"
#include "support/temp_folder.h"

namespace dtrain::model::token_sampler_test {
namespace {

std::int64_t sample_token(const at::Tensor& logits, const SamplingRule& rule, std::int64_t index) {
  return TokenSampler(rule).sample(logits, index);
}

const at::Tensor& logits() {
  static const at::Tensor values = at::tensor({1.0, 3.0, -2.0, 2.5, 3.0, 0.0}, at::kDouble);
  return values;
}

/// Counts each token in `count` draws.
std::vector<double> shares(const SamplingRule& rule, std::int64_t count) {
  std::vector<double> result(static_cast<std::size_t>(logits().numel()));
  for (std::int64_t index = 0; index < count; ++index) {
    result[static_cast<std::size_t>(sample_token(logits(), rule, index))] +=
        1 / static_cast<double>(count);
  }
  return result;
}

TEST_CASE("Temperature 0 selects the most likely token, the first of ties") {
  for (std::int64_t index = 0; index < 20; ++index) {
    CHECK(sample_token(logits(), {.temperature = 0, .seed = 5}, index) == 1);
  }
}

TEST_CASE("Token frequencies follow the softmax at the given temperature") {
  const double temperature = GENERATE(1.0, 0.5, 4.0);
  const at::Tensor expected = (logits() / temperature).softmax(0);
  constexpr std::int64_t kDraws = 40000;
  const std::vector<double> found = shares({.temperature = temperature, .seed = 1}, kDraws);
  for (std::size_t token = 0; token < found.size(); ++token) {
    const auto share = expected[static_cast<std::int64_t>(token)].item<double>();
    const double deviation = std::sqrt(share * (1 - share) / kDraws);
    CHECK(std::abs(found[token] - share) < 5 * deviation);
  }
}

TEST_CASE("top_k keeps the k most likely tokens, preferring lower ids among ties") {
  CHECK(shares({.top_k = 1, .seed = 2}, 100)[1] == Approx(1));
  const std::vector<double> three = shares({.top_k = 3, .seed = 2}, 2000);
  CHECK(three[1] + three[3] + three[4] == Approx(1));
  CHECK(three[3] > 0.1);
  // Enough ties that an unstable sort would reorder them.
  const at::Tensor equals = at::zeros({256}, at::kDouble);
  for (std::int64_t index = 0; index < 100; ++index) {
    CHECK(sample_token(equals, {.top_k = 3}, index) < 3);
  }
  // A top_k above the vocabulary size keeps all tokens.
  CHECK(shares({.top_k = 100, .seed = 2}, 500) == shares({.seed = 2}, 500));
}

TEST_CASE("top_p keeps the fewest most likely tokens that reach it, preferring lower ids of ties") {
  // The two most likely tokens, 1 and 4, have 0.36 each; token 3 has 0.22.
  CHECK(shares({.top_p = 1e-9, .seed = 2}, 100)[1] == Approx(1));
  const std::vector<double> two = shares({.top_p = 0.5, .seed = 2}, 2000);
  CHECK(two[1] + two[4] == Approx(1));
  CHECK(std::abs(two[1] - 0.5) < 5 * std::sqrt(0.25 / 2000));
  const std::vector<double> three = shares({.top_p = 0.8, .seed = 2}, 2000);
  CHECK(three[1] + three[3] + three[4] == Approx(1));
  CHECK(three[3] > 0.1);
  // Among equal tokens, exactly the ones whose sum reaches top_p.
  const at::Tensor equals = at::zeros({256}, at::kDouble);
  std::set<std::int64_t> found;
  for (std::int64_t index = 0; index < 400; ++index) {
    found.insert(sample_token(equals, {.top_p = 0.0625}, index));
  }
  CHECK(found.size() == 16);
  CHECK(*found.rbegin() == 15);
}

TEST_CASE("top_p applies to the tokens that top_k keeps") {
  // Each of the two most likely tokens has half.
  CHECK(shares({.top_k = 2, .top_p = 0.5, .seed = 2}, 100)[1] == Approx(1));
}

TEST_CASE("Extreme logits and temperatures give the most likely tokens or all of them") {
  const at::Tensor extreme = at::tensor({-1e308, 1e308, 1e308, 0.0}, at::kDouble);
  for (std::int64_t index = 0; index < 100; ++index) {
    const std::int64_t token = sample_token(extreme, {.top_p = 0.9, .seed = 2}, index);
    CHECK((token == 1 || token == 2));
  }
  const std::vector<double> flat = shares({.temperature = 1e300, .seed = 2}, 3000);
  for (const double share : flat) CHECK(share > 0.1);
}

// A uniform value in [0, 1) from the Philox words of a token's index.
double drawn_share(std::uint64_t seed, std::int64_t index) {
  const auto words = base::philox({static_cast<std::uint32_t>(index), 0, 0, 0},
                                  base::philox_key(seed, base::RandomPurpose::sampling));
  return (std::ldexp(words[0] >> 5, 26) + (words[1] >> 6)) * std::ldexp(1.0, -53);
}

// The definition: sort the tokens, most likely first, leave out what top_k and top_p do, and of the
// rest, in the order of ids, select the one at which the cumulative weight exceeds the drawn fraction.
std::int64_t token_of_sorted(const at::Tensor& logits, const SamplingRule& rule, double share) {
  const at::Tensor wide = logits.to(at::kDouble);
  const auto* values = wide.const_data_ptr<double>();
  std::vector<std::size_t> order(static_cast<std::size_t>(wide.numel()));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t token) { return values[token]; });
  const double highest = values[order.front()];
  const auto sums_of = [&] {
    std::vector<double> sums;
    for (double total = 0; const std::size_t token : order) {
      total += std::exp((values[token] - highest) / rule.temperature);
      sums.push_back(total);
    }
    return sums;
  };
  if (rule.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(rule.top_k)));
  if (rule.top_p < 1) {
    const std::vector<double> sums = sums_of();
    const auto last = std::lower_bound(sums.begin(), sums.end() - 1, rule.top_p * sums.back());
    order.resize(static_cast<std::size_t>(last - sums.begin()) + 1);
  }
  std::ranges::sort(order);
  const std::vector<double> sums = sums_of();
  const auto found = std::upper_bound(sums.begin(), sums.end() - 1, share * sums.back());
  return static_cast<std::int64_t>(order[static_cast<std::size_t>(found - sums.begin())]);
}

TEST_CASE("Sampling from a large vocabulary equals the definition by sorting") {
  at::manual_seed(7);
  const double scale = GENERATE(0.001, 1.0, 8.0);
  const at::Tensor normal = at::randn({50257}, at::kFloat) * scale;
  at::Tensor outliers = normal.clone();
  outliers.slice(0, 0, 3).copy_(at::tensor({-1e30F, 9.0F, -80.0F}));
  const SamplingRule rule{.temperature = 0.8,
                          .top_k = GENERATE(0, 40, 20000),
                          .top_p = GENERATE(1.0, 0.9, 0.3),
                          .seed = 3};
  for (const at::Tensor& values : {normal, normal.round(), outliers}) {
    for (std::int64_t index = 0; index < 3; ++index) {
      CHECK(sample_token(values, rule, index) ==
            token_of_sorted(values, rule, drawn_share(rule.seed, index)));
    }
  }
}

TEST_CASE("A draw depends on logits, seed and index alone") {
  const SamplingRule rule{.temperature = 4, .seed = 3};
  std::vector<std::int64_t> forward;
  for (std::int64_t index = 0; index < 64; ++index) {
    forward.push_back(sample_token(logits(), rule, index));
  }
  for (std::int64_t index = 63; index >= 0; --index) {
    CHECK(sample_token(logits(), rule, index) == forward[static_cast<std::size_t>(index)]);
  }
  std::vector<std::int64_t> other;
  for (std::int64_t index = 0; index < 64; ++index) {
    other.push_back(sample_token(logits(), {.temperature = 4, .seed = 4}, index));
  }
  CHECK(forward != other);
  CHECK(std::set<std::int64_t>(forward.begin(), forward.end()).size() > 3);
}

TEST_CASE("Adding a constant to the logits does not change the result") {
  for (std::int64_t index = 0; index < 50; ++index) {
    CHECK(sample_token(logits() + 4096, {.seed = 3}, index) ==
          sample_token(logits(), {.seed = 3}, index));
  }
}

TEST_CASE("A tiny temperature selects the most likely tokens without overflow") {
  const std::vector<double> found = shares({.temperature = 1e-300, .seed = 1}, 1000);
  CHECK(found[1] + found[4] == Approx(1));  // the two ties
}

TEST_CASE("A logit that is not finite is rejected") {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    at::Tensor damaged = logits().clone();
    damaged[2] = bad;
    for (const SamplingRule& rule : {SamplingRule{}, SamplingRule{.temperature = 0},
                                     SamplingRule{.top_k = 2}, SamplingRule{.top_p = 0.5}}) {
      testing::message_of(base::ErrorKind::numerics, [&] { (void)sample_token(damaged, rule, 0); });
    }
  }
}

TEST_CASE("Times of sampling a token", "[.bench-generate]") {
  at::manual_seed(7);
  constexpr int kTokens = 200;
  const at::Tensor values = at::randn({50257}, at::kFloat) * 2;
  for (const SamplingRule& rule :
       {SamplingRule{}, SamplingRule{.temperature = 0}, SamplingRule{.temperature = 0.8},
        SamplingRule{.top_k = 50}, SamplingRule{.top_p = 0.9}}) {
    TokenSampler sampler(rule);
    (void)sampler.sample(values, 0);
    const auto begin = std::chrono::steady_clock::now();
    for (int index = 0; index < kTokens; ++index) (void)sampler.sample(values, index);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    fmt::print("temperature {}, top_k {}, top_p {}: {:.3f} ms per token of 50,257\n",
               rule.temperature, rule.top_k, rule.top_p, time.count() / kTokens);
  }
}

}  // namespace
}  // namespace dtrain::model::token_sampler_test
