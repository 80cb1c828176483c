#include "dtrain/comm/slices.h"

#include <catch2/catch.hpp>

namespace dtrain::comm {
namespace {

// Through the command line it would take as many processes as there are ranks.
TEST_CASE("A staging area holds a part of every rank's slice, however many ranks there are") {
  for (const std::int64_t ranks : {1, 2, 3, 2048, 2049, 4097, 1 << 20}) {
    for (const std::int64_t bytes : {1, 2, 4, 8}) {
      CAPTURE(ranks, bytes);
      CHECK(staged_slice(ranks, bytes) >= kSliceGrain);
      CHECK(staged_slice(ranks, bytes) % kSliceGrain == 0);
      CHECK(ranks * staged_slice(ranks, bytes) * bytes <= staging_bytes(ranks));
    }
  }
  CHECK(staging_bytes(64) == 1 << 20);
}

}  // namespace
}  // namespace dtrain::comm
