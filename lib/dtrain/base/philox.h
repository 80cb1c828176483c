// Counter-based random numbers: a value is a pure function of (seed, purpose, counter), never of
// call order, thread or rank. Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3
// (SC 2011), Philox4x32-10.
#pragma once

#include <array>
#include <cstdint>

namespace dtrain::base {

/// The inputs of the Philox4x32-10 function.
using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// The purpose of a random stream; streams of one seed are independent.
enum class RandomPurpose : std::uint32_t {
  initialisation = 0x494E4954,
  dropout = 0x44524F50,
  shuffle = 0x53485546,
  sampling = 0x53414D50,
};

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

/// The key of one purpose under a 64-bit seed.
[[nodiscard]] constexpr PhiloxKey philox_key(std::uint64_t seed, RandomPurpose purpose) {
  return {static_cast<std::uint32_t>(seed),
          static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(purpose)};
}

/// Four independent uniform 32-bit words for one counter.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

}  // namespace dtrain::base
