#include "dtrain/base/philox.h"

#include <catch2/catch.hpp>
#include <set>

namespace philox_test {
namespace {

using dtrain::base::philox;
using dtrain::base::philox_key;
using dtrain::base::RandomPurpose;

// The known-answer vectors of philox4x32-10 published with Random123 (kat_vectors).
TEST_CASE("Philox gives the published known answers") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Streams of different purposes and seeds have different keys") {
  std::set<dtrain::base::PhiloxKey> keys;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32, ~0ULL}) {
    for (const RandomPurpose purpose : {RandomPurpose::initialisation, RandomPurpose::dropout,
                                        RandomPurpose::shuffle, RandomPurpose::sampling}) {
      keys.insert(philox_key(seed, purpose));
    }
  }
  CHECK(keys.size() == 16);
}

}  // namespace
}  // namespace philox_test
