#include "launcher/hang_watch.h"

#include <catch2/catch.hpp>

#include "support/launcher_ranks.h"

namespace launcher::hang_watch_test {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

const auto kStart = HangWatch::Time();

std::vector<Rank> some_ranks(int count) {
  std::vector<Rank> ranks;
  for (int index = 0; index < count; ++index) ranks.push_back(dtrain::testing::rank_of(index));
  return ranks;
}

TEST_CASE("A rank is watched from its first sign of life") {
  HangWatch watch(Seconds(5.0), 2);
  std::vector<Rank> ranks = some_ranks(2);
  CHECK_FALSE(watch.longest_silence(ranks));
  watch.heard(1, -1, kStart + 1s);
  watch.heard(0, 1, kStart + 3s);
  auto silence = watch.longest_silence(ranks);
  REQUIRE(silence);
  CHECK(silence->rank == 1);
  CHECK(silence->until == kStart + 7s);  // a second between signs of life
  watch.heard(1, 1, kStart + 4s);
  silence = watch.longest_silence(ranks);
  CHECK(silence->rank == 0);
  ranks[0].end = RankEnd{};
  CHECK(watch.longest_silence(ranks)->rank == 1);
}

TEST_CASE("The default limit is 20 median steps, at least ten minutes") {
  HangWatch watch({}, 1);
  CHECK(watch.limit() == Seconds(600.0));
  auto now = kStart;
  for (int step = 1; step <= 9; ++step) watch.heard(0, step, now += step == 5 ? 300s : 100s);
  CHECK(watch.limit() == Seconds(2000.0));
  watch.heard(0, 9, now + 5000s);  // busy, in the same step
  CHECK(watch.limit() == Seconds(2000.0));
  HangWatch quick({}, 1);
  for (int step = 1; step <= 9; ++step) quick.heard(0, step, kStart + step * 1ms);
  CHECK(quick.limit() == Seconds(600.0));
}

TEST_CASE("A rank is alive for the limit after a sign of life") {
  HangWatch watch(Seconds(5.0), 2);
  watch.heard(0, 1, kStart);
  CHECK(watch.is_alive(0, kStart + 5s));
  CHECK_FALSE(watch.is_alive(0, kStart + 6s));  // a second between signs of life
  CHECK_FALSE(watch.is_alive(1, kStart));
  CHECK(watch.watches_any());
}

TEST_CASE("A limit of zero watches nobody") {
  HangWatch watch(Seconds(0.0), 1);
  watch.heard(0, 1, kStart);
  CHECK_FALSE(watch.longest_silence(some_ranks(1)));
}

}  // namespace
}  // namespace launcher::hang_watch_test
