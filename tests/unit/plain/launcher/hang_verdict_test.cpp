#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "launcher/judge/hang_watch.h"
#include "support/messages.h"
#include "support/ranks/launcher_ranks.h"

namespace launcher::hang_verdict_test {
namespace {

using Answers = std::vector<std::optional<RankRecords>>;
using dtrain::testing::Names;
using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

RankRecords answer(const std::string& calls) {
  return parse_records("where in backward, block 3, of step 12\n" + calls + "records-end\n");
}

TEST_CASE("An answer is read line by line") {
  const RankRecords records = parse_records(
      "where in data of step 1\n"
      "call 17 all_reduce 4096 open 12.500 -1 dp of 4 ranks from 0\n"
      "call nine all_reduce 4096 open 1 -1 dp\n"  // of no use
      "call 3 recv 8 ended 0.250 2 pp\n"
      "news of a later dtrain\n"
      "records-end\n");
  CHECK(records.is_whole);
  CHECK(records.where == "in data of step 1");
  REQUIRE(records.calls.size() == 2);
  const GroupCall& call = records.calls.front();
  CHECK(call.number == 17);
  CHECK(call.op == "all_reduce");
  CHECK(call.awaited == -1);
  CHECK(call.bytes == 4096);
  CHECK(call.is_open);
  CHECK(call.seconds == 12.5);
  CHECK(call.group == "dp of 4 ranks from 0");
  CHECK(records.calls.back().awaited == 2);
  CHECK_FALSE(records.calls.back().is_open);
  CHECK_FALSE(parse_records("where in update\n").is_whole);
}

TEST_CASE("The rank that has not come to the others' call is found") {
  const RankRecords waits = answer("call 17 all_reduce 4096 open 12 -1 dp\n");
  const RankRecords late = answer("call 16 all_reduce 4096 ended 13 -1 dp\n");
  const auto verdict = hang_verdict(Answers{waits, waits, late, waits});
  REQUIRE(verdict);
  CHECK(verdict->culprit == 2);
  CHECK_THAT(verdict->text, Names("call 17", "all_reduce", "4096 bytes", "dp", "ranks 0, 1, 3",
                                  "12 s", "in backward, block 3, of step 12"));
}

TEST_CASE("A rank that waits for another is not to blame") {
  // 0 waits for 1 in a pair, 1 for 2 in another: 2 holds up both.
  const auto verdict =
      hang_verdict(Answers{answer("call 5 recv 80 open 9 1 pp of 2 ranks from 0\n"),
                           answer("call 4 recv 80 ended 9 0 pp of 2 ranks from 0\n"
                                  "call 8 all_gather 16 open 8 -1 dp of 2 ranks from 1\n"),
                           answer("call 7 all_gather 16 ended 9 -1 dp of 2 ranks from 1\n")});
  REQUIRE(verdict);
  CHECK(verdict->culprit == 2);
}

TEST_CASE("A call that a group has never had counts as not made") {
  const auto verdict = hang_verdict(Answers{answer("call 1 all_reduce 16 open 8 -1 dp\n"),
                                            answer("call 0 none 0 ended 0 -1 dp\n")});
  REQUIRE(verdict);
  CHECK(verdict->culprit == 1);
}

TEST_CASE("A call that is only queued has not come to the others") {
  const auto verdict = hang_verdict(Answers{answer("call 9 all_reduce 16 open 8 -1 dp\n"),
                                            answer("call 9 all_reduce 16 queued 8 -1 dp\n")});
  REQUIRE(verdict);
  CHECK(verdict->culprit == 1);
}

TEST_CASE("A rank that stands still within a call is found by what the others need") {
  // 0 needs what 1 has from 2, who needs nobody.
  const auto verdict = hang_verdict(Answers{answer("call 9 all_reduce 16 open 8 1 dp\n"),
                                            answer("call 9 all_reduce 16 open 8 2 dp\n"),
                                            answer("call 9 all_reduce 16 open 8 -1 dp\n")});
  REQUIRE(verdict);
  CHECK(verdict->culprit == 2);
  CHECK_THAT(verdict->text, Names("held up", "call 9", "all_reduce", "16 bytes", "dp"));
}

TEST_CASE("A rank that waits for one of another group is not mistaken for one of this") {
  const RankRecords row = answer("call 2 all_reduce 16 open 8 -1 tp of 2 ranks from 0\n");
  const RankRecords other = answer("call 1 all_reduce 16 ended 8 -1 tp of 2 ranks from 2\n");
  CHECK_FALSE(hang_verdict(Answers{row, row, other, other}));
}

TEST_CASE("One of several that does not answer is to blame; where none does, nobody is") {
  const RankRecords waits = answer("call 17 all_reduce 4096 open 12 -1 dp\n");
  const auto verdict = hang_verdict(Answers{waits, RankRecords{}, std::nullopt});
  REQUIRE(verdict);
  CHECK(verdict->culprit == 1);
  CHECK_THAT(verdict->text,
             Names("not respond", "rank 0", "12 s", "call 17", "all_reduce", "4096 bytes", "dp"));
  CHECK_FALSE(hang_verdict(Answers{RankRecords{}, RankRecords{}}));
}

TEST_CASE("Ranks that wait for each other are reported as a deadlock") {
  const auto verdict = hang_verdict(
      Answers{answer("call 5 recv 80 open 9 1 pp\n"), answer("call 5 recv 80 open 9 0 pp\n")});
  REQUIRE(verdict);
  CHECK_THAT(verdict->text, Names("deadlock"));
}

TEST_CASE("Of many ranks that wait 20 are named") {
  Answers answers(64, answer("call 17 all_reduce 4096 open 12 -1 dp\n"));
  answers[40] = answer("call 16 all_reduce 4096 ended 13 -1 dp\n");
  const auto verdict = hang_verdict(answers);
  REQUIRE(verdict);
  CHECK(verdict->culprit == 40);
  CHECK_THAT(verdict->text, Names("ranks 0, 1, 2", "18, 19", 43, "12 s"));
}

// Looking at each pair of calls would take minutes.
TEST_CASE("A deadlock of 512 ranks with 256 groups each is reported") {
  constexpr int kRanks = 512;
  constexpr int kGroups = 256;
  Answers answers;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::string calls;
    for (int group = 0; group < kGroups; ++group) {
      // In each group another rank is one call ahead of all others.
      const bool is_ahead = group == rank % kGroups;
      calls += fmt::format("call {} all_reduce 16 open 8 -1 group {} of {} ranks from 0\n",
                           is_ahead ? 2 : 1, group, kRanks);
    }
    answers.emplace_back(answer(calls));
  }
  const auto verdict = hang_verdict(answers);
  REQUIRE(verdict);
  CHECK(verdict->culprit == 1);
  CHECK_THAT(verdict->text, Names("deadlock"));
}

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
  watch.heartbeat(1, -1, kStart + 1s);
  watch.heartbeat(0, 1, kStart + 3s);
  auto silence = watch.longest_silence(ranks);
  REQUIRE(silence);
  CHECK(silence->rank == 1);
  CHECK(silence->until == kStart + 7s);  // a second between signs of life
  watch.heartbeat(1, 1, kStart + 4s);
  silence = watch.longest_silence(ranks);
  CHECK(silence->rank == 0);
  ranks[0].end = RankEnd{};
  CHECK(watch.longest_silence(ranks)->rank == 1);
}

TEST_CASE("The default limit is 20 median steps, at least ten minutes") {
  HangWatch watch({}, 1);
  CHECK(watch.limit() == Seconds(600.0));
  auto now = kStart;
  for (int step = 1; step <= 9; ++step) watch.heartbeat(0, step, now += step == 5 ? 300s : 100s);
  CHECK(watch.limit() == Seconds(2000.0));
  watch.heartbeat(0, 9, now + 5000s);  // busy, in the same step
  CHECK(watch.limit() == Seconds(2000.0));
  HangWatch quick({}, 1);
  for (int step = 1; step <= 9; ++step) quick.heartbeat(0, step, kStart + step * 1ms);
  CHECK(quick.limit() == Seconds(600.0));
}

TEST_CASE("A rank is alive for the limit after a sign of life") {
  HangWatch watch(Seconds(5.0), 2);
  watch.heartbeat(0, 1, kStart);
  CHECK(watch.is_alive(0, kStart + 5s));
  CHECK_FALSE(watch.is_alive(0, kStart + 6s));  // a second between signs of life
  CHECK_FALSE(watch.is_alive(1, kStart));
  CHECK(watch.watches_any());
}

TEST_CASE("A limit of zero watches nobody") {
  HangWatch watch(Seconds(0.0), 1);
  watch.heartbeat(0, 1, kStart);
  CHECK_FALSE(watch.longest_silence(some_ranks(1)));
}

}  // namespace
}  // namespace launcher::hang_verdict_test
