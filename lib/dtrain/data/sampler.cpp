#include "dtrain/data/sampler.h"

#include "dtrain/base/check.h"

namespace dtrain::data {

namespace {

// Few rounds leave structure in tiny domains, where a round has only a few functions to choose
// from: with six, some orders of four samples are clearly likelier than others.
constexpr std::uint32_t kRounds = 12;

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
