#include "dtrain/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

// Few rounds leave structure in tiny domains, which have few distinct round functions: with six
// rounds, some orders of four samples are clearly likelier than others.
constexpr std::uint32_t kRounds = 12;
// Counter value in place of a round number, for the epoch's shift.
constexpr std::uint32_t kShiftRound = 0xFFFFFFFF;

// Odd, so its multiples visit every number below kBlock; close to kBlock / golden ratio.
constexpr std::int64_t kStep = 40503;

/// Returns the sum of floor((step * i + start) / modulus) over 0 <= i < count; arguments >= 0.
std::int64_t floor_sum(std::int64_t count, std::int64_t modulus, std::int64_t step,
                       std::int64_t start) {
  std::int64_t sum = 0;
  for (;;) {
    sum += count * (count - 1) / 2 * (step / modulus) + count * (start / modulus);
    step %= modulus;
    start %= modulus;
    const std::int64_t last = step * count + start;
    if (last < modulus) return sum;
    count = last / modulus;
    start = last % modulus;
    std::swap(modulus, step);
  }
}

/// Returns how many of the first `count` values of a block's sequence are below `bound` <= kBlock.
std::int64_t count_below(std::int64_t count, std::int64_t bound) {
  constexpr std::int64_t kBlock = SourceOrder::kBlock;
  // x mod m < b exactly if floor(x / m) - floor((x - b) / m) is 1; adding m avoids negative values.
  return count + floor_sum(count, kBlock, kStep, 0) -
         floor_sum(count, kBlock, kStep, kBlock - bound);
}

/// Apportions kBlock samples to the weights, at least 1 each: rounds to nearest, then corrects the
/// sum one by one at the share with the largest rounding error (ties: the largest share, then the
/// first).
std::vector<std::int64_t> shares_of(std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  DTRAIN_CHECK(!weights.empty() && std::isfinite(total) && total > 0 &&
               std::ssize(weights) <= SourceOrder::kBlock);
  const auto exact = [&](std::size_t i) {
    return weights[i] / total * static_cast<double>(SourceOrder::kBlock);
  };
  std::vector<std::int64_t> shares;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    shares.push_back(std::max<std::int64_t>(1, std::llround(exact(i))));
  }
  std::int64_t excess =
      std::accumulate(shares.begin(), shares.end(), std::int64_t{0}) - SourceOrder::kBlock;
  const std::int64_t change = excess > 0 ? -1 : 1;
  std::priority_queue<std::tuple<double, std::int64_t, std::int64_t>> candidates;
  const auto add = [&](std::size_t i) {
    if (change < 0 && shares[i] == 1) return;
    const double rounded_by = static_cast<double>(shares[i]) - exact(i);
    candidates.emplace(-static_cast<double>(change) * rounded_by, shares[i],
                       -static_cast<std::int64_t>(i));
  };
  for (std::size_t i = 0; i < shares.size(); ++i) add(i);
  for (; excess != 0; excess += change) {
    const auto i = static_cast<std::size_t>(-std::get<2>(candidates.top()));
    candidates.pop();
    shares[i] += change;
    add(i);
  }
  return shares;
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t num_samples, std::uint64_t seed)
    : num_samples_(static_cast<std::uint64_t>(num_samples)),
      key_(base::philox_key(seed, base::RandomPurpose::shuffle)) {
  DTRAIN_CHECK(num_samples >= 1 && num_samples <= std::int64_t{1} << 62, "{} samples", num_samples);
  while (std::uint64_t{1} << (2 * half_bits_) < num_samples_) ++half_bits_;
}

std::int64_t SampleOrder::operator()(std::int64_t consumed) const {
  DTRAIN_CHECK(consumed >= 0, "{} samples consumed", consumed);
  const auto position = static_cast<std::uint64_t>(consumed);
  const std::uint64_t epoch = position / num_samples_;
  std::uint64_t index = position % num_samples_;
  do {
    index = permute(index, epoch);
  } while (index >= num_samples_);
  return static_cast<std::int64_t>(index);
}

std::int64_t SampleOrder::shift(std::int64_t consumed, std::int64_t seq_len) const {
  const std::uint64_t epoch = static_cast<std::uint64_t>(consumed) / num_samples_;
  if (epoch == 0) return 0;
  const auto noise = base::philox(
      {0, kShiftRound, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)},
      key_);
  return static_cast<std::int64_t>(noise[0] % static_cast<std::uint64_t>(seq_len));
}

SourceOrder::SourceOrder(std::span<const double> weights) {
  begins_.push_back(0);
  for (const std::int64_t share : shares_of(weights)) begins_.push_back(begins_.back() + share);
}

SourceOrder::Position SourceOrder::operator()(std::int64_t consumed) const {
  DTRAIN_CHECK(consumed >= 0, "{} samples consumed", consumed);
  const std::int64_t block = consumed / kBlock;
  const std::int64_t index = consumed % kBlock;
  const std::int64_t number = index * kStep % kBlock;
  const auto next = std::ranges::upper_bound(begins_, number);
  const auto source = static_cast<std::size_t>(next - begins_.begin()) - 1;
  const std::int64_t before =
      count_below(index, begins_[source + 1]) - count_below(index, begins_[source]);
  return {.source = source, .consumed = block * share(source) + before};
}

std::uint64_t SampleOrder::permute(std::uint64_t index, std::uint64_t epoch) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = index >> half_bits_;
  std::uint64_t right = index & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const auto noise =
        base::philox({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch),
                      static_cast<std::uint32_t>(epoch >> 32)},
                     key_);
    const std::uint64_t mixed = left ^ (noise[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace dtrain::data
