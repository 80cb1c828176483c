#include "dtrain/data/tokens/headerless.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace dtrain::data {
namespace {

/// A histogram of the bytes at one position within a number.
struct ByteCounts {
  std::array<std::int64_t, 256> counts{};
  std::int64_t size = 0;

  void add(std::byte byte) {
    ++counts[std::to_integer<std::size_t>(byte)];
    ++size;
  }
  // True for high bytes of small numbers, including negative ones.
  [[nodiscard]] bool is_filler() const { return counts.front() + counts.back() == size; }
};

ByteCounts sum(ByteCounts a, const ByteCounts& b) {
  for (std::size_t i = 0; i < a.counts.size(); ++i) a.counts[i] += b.counts[i];
  a.size += b.size;
  return a;
}

/// The fraction of byte pairs that are equal, and its variance.
struct Repetition {
  double share = 0;
  double variance = 0;
};

// Estimates, without bias, the sums of p^2 and p^3 over the byte probabilities p, and from them the
// variance of the first for independent bytes.
Repetition repetition_of(const ByteCounts& bytes) {
  const auto n = static_cast<double>(bytes.size);
  double squares = 0;
  double cubes = 0;
  for (const std::int64_t count : bytes.counts) {
    const auto c = static_cast<double>(count);
    squares += c * (c - 1) / (n * (n - 1));
    cubes += c * (c - 1) * (c - 2) / (n * (n - 1) * (n - 2));
  }
  const double spread = std::max(0.0, cubes - squares * squares);
  return {.share = squares, .variance = 4 * spread / n + 2 * squares / (n * n)};
}

// Returns whether two high bytes that differ only in the sign are nearly as frequent as equal ones,
// whose fraction is `equal`. The ratio is 0.98 or more for weights, and at most 0.7 for tokens,
// which it reaches if they are uniform over GPT-2's vocabulary.
bool has_random_signs(const ByteCounts& high, double equal) {
  constexpr double kLeast = 0.9;
  constexpr std::size_t kSign = 0x80;
  const auto n = static_cast<double>(high.size);
  double opposite = 0;
  for (std::size_t i = 0; i < kSign; ++i) {
    const auto count = static_cast<double>(high.counts[i]);
    opposite += 2 * count * static_cast<double>(high.counts[i + kSign]) / (n * (n - 1));
  }
  return opposite > kLeast * equal;
}

}  // namespace

Headerless examine_headerless(std::span<const std::byte> bytes) {
  constexpr std::size_t kFewestBytes = 16;
  constexpr double kDeviations = 5;
  if (bytes.size() < kFewestBytes) return Headerless::unknown;
  std::array<ByteCounts, 4> places;
  for (std::size_t i = 0; i < bytes.size(); ++i) places[i % places.size()].add(bytes[i]);
  if (places[0].is_filler() != places[2].is_filler() ||
      places[1].is_filler() != places[3].is_filler()) {
    return Headerless::wider;
  }
  const Repetition first = repetition_of(sum(places[0], places[2]));
  const ByteCounts high = sum(places[1], places[3]);
  const Repetition second = repetition_of(high);
  const double difference = second.share - first.share;
  const double least = kDeviations * std::sqrt(first.variance + second.variance);
  if (std::abs(difference) <= least) return Headerless::unknown;
  if (difference < 0) return Headerless::swapped;
  return has_random_signs(high, second.share) ? Headerless::floats : Headerless::uint16;
}

}  // namespace dtrain::data
