#include "dtrain/parallel/data/internal/unit_schedule.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "support/ids.h"

namespace dtrain::parallel::unit_schedule_test {
namespace {

using testing::operator""_u;

// Blocks 0, 1, 2 with a unit each.
const UnitUses kOwn{.of_block = {{0_u}, {1_u}, {2_u}}};
// An embedding, two levels that share a unit, a head.
const UnitUses kTied{.of_block = {{0_u}, {1_u}, {1_u}, {2_u}}};

// One line per action: "F0 +g0 | -g0" has unit 0 gathered before forward of block 0 and freed
// after; r0 is its reduction.
std::string text_of(const UnitUses& uses, const UnitScheduleOptions& options,
                    std::int64_t microbatches = 1) {
  const auto actions = sequential_actions(uses.of_block.size(), microbatches);
  const UnitSchedule schedule = make_unit_schedule(actions, uses, options);
  const auto words = [](const std::vector<UnitEvent>& events) {
    std::string text;
    for (const UnitEvent& event : events) {
      text += fmt::format(" {}{}",
                          event.kind == UnitEventKind::gather ? "+"
                          : event.kind == UnitEventKind::free ? "-"
                                                              : "r",
                          event.unit.value());
    }
    return text;
  };
  std::string text;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    text +=
        fmt::format("{}{}{} |{}\n", actions[i].kind == ActionKind::forward ? "F" : "B",
                    actions[i].block.value(), words(schedule.before[i]), words(schedule.after[i]));
  }
  return text;
}

TEST_CASE("A unit is gathered before its use and freed when the next action does not use it") {
  CHECK(text_of(kOwn, {.backward_prefetch = BackwardPrefetch::none}) ==
        "F0 +0 | -0\n"
        "F1 +1 | -1\n"
        "F2 +2 |\n"  // its backward comes next
        "B2 | -2 r2\n"
        "B1 +1 | -1 r1\n"
        "B0 +0 | -0 r0\n");
}

TEST_CASE("A frozen unit is gathered like any other, but never reduced") {
  UnitUses uses = kOwn;
  uses.frozen = {1_u};
  CHECK(text_of(uses, {.backward_prefetch = BackwardPrefetch::none}) ==
        "F0 +0 | -0\n"
        "F1 +1 | -1\n"
        "F2 +2 |\n"
        "B2 | -2 r2\n"
        "B1 +1 | -1\n"
        "B0 +0 | -0 r0\n");
}

TEST_CASE("Backward prefetch gathers the next unit before, or after, the backward of one") {
  CHECK(text_of(kOwn, {.backward_prefetch = BackwardPrefetch::pre}) ==
        "F0 +0 | -0\n"
        "F1 +1 | -1\n"
        "F2 +2 |\n"
        "B2 +1 | -2 r2\n"
        "B1 +0 | -1 r1\n"
        "B0 | -0 r0\n");
  CHECK(text_of(kOwn, {.backward_prefetch = BackwardPrefetch::post}) ==
        "F0 +0 | -0\n"
        "F1 +1 | -1\n"
        "F2 +2 |\n"
        "B2 | -2 +1 r2\n"
        "B1 | -1 +0 r1\n"
        "B0 | -0 r0\n");
}

TEST_CASE("Forward prefetch gathers the next unit during the use of one, within the limit") {
  CHECK(text_of(kOwn, {.backward_prefetch = BackwardPrefetch::none, .forward_prefetch = true}) ==
        "F0 +0 +1 | -0\n"
        "F1 +2 | -1\n"
        "F2 |\n"
        "B2 | -2 r2\n"
        "B1 +1 | -1 r1\n"
        "B0 +0 | -0 r0\n");
  const UnitScheduleOptions alone{
      .backward_prefetch = BackwardPrefetch::pre, .forward_prefetch = true, .limit_gathers = 1};
  CHECK(text_of(kOwn, alone) == text_of(kOwn, {.backward_prefetch = BackwardPrefetch::none}));
}

TEST_CASE("The limit bounds gathered units, and a higher one prefetches further ahead") {
  const auto actions = sequential_actions(3, 1);
  const auto most = [&](std::int64_t limit) {
    return make_unit_schedule(actions, kOwn, {.forward_prefetch = true, .limit_gathers = limit})
        .max_gathered;
  };
  CHECK(most(1) == 1);
  CHECK(most(2) == 2);
  CHECK(most(3) == 3);
}

TEST_CASE("Tied levels are gathered once a pass and reduced after their last use") {
  CHECK(text_of(kTied, {.backward_prefetch = BackwardPrefetch::none}) ==
        "F0 +0 | -0\n"
        "F1 +1 |\n"
        "F2 | -1\n"
        "F3 +2 |\n"
        "B3 | -2 r2\n"
        "B2 +1 |\n"
        "B1 | -1 r1\n"
        "B0 +0 | -0 r0\n");
}

TEST_CASE("A recomputed group has all its units gathered for its last block's backward pass") {
  UnitUses uses{.of_block = {{0_u}, {1_u}, {2_u}, {3_u}}};
  uses.of_backward = {{0_u}, {1_u}, {1_u, 2_u}, {3_u}};  // blocks 1 and 2 are a group
  CHECK(text_of(uses, {.backward_prefetch = BackwardPrefetch::none}) ==
        "F0 +0 | -0\n"
        "F1 +1 | -1\n"
        "F2 +2 | -2\n"
        "F3 +3 |\n"
        "B3 | -3 r3\n"
        "B2 +1 +2 | -2 r2\n"  // unit 1 stays for the next action; it has no gradient yet
        "B1 | -1 r1\n"
        "B0 +0 | -0 r0\n");
}

TEST_CASE("A unit freed after the backward pass is gathered once per step") {
  CHECK(text_of(kOwn, {.reshard = Reshard::after_backward,
                       .backward_prefetch = BackwardPrefetch::none}) ==
        "F0 +0 |\n"
        "F1 +1 |\n"
        "F2 +2 |\n"
        "B2 | -2 r2\n"
        "B1 | -1 r1\n"
        "B0 | -0 r0\n");
}

TEST_CASE("Units that stay gathered are only reduced, in every microbatch or the last") {
  const auto actions = sequential_actions(3, 3);
  const auto reductions = [&](bool every) {
    const UnitSchedule schedule = make_unit_schedule(
        actions, kOwn, {.reshard = Reshard::never, .reduce_every_microbatch = every});
    CHECK(schedule.count(UnitEventKind::gather) == 0);
    CHECK(schedule.count(UnitEventKind::free) == 0);
    CHECK(schedule.max_gathered == 0);
    return schedule.count(UnitEventKind::reduce);
  };
  CHECK(reductions(true) == 9);
  CHECK(reductions(false) == 3);
}

TEST_CASE("Between microbatches the first block's unit stays") {
  const std::string text = text_of(kOwn, {.backward_prefetch = BackwardPrefetch::none}, 2);
  CHECK(text.find("B0 +0 | r0\nF0 | -0\n") != std::string::npos);
}

// A search through all residencies for each action would take a thousand times as long: hours,
// while a test may take two minutes.
TEST_CASE("Scheduling very many microbatches takes linear time") {
  const auto actions = sequential_actions(3, 65'536);
  const UnitSchedule schedule = make_unit_schedule(actions, kOwn, {});
  CHECK(schedule.count(UnitEventKind::gather) == schedule.count(UnitEventKind::free));
  CHECK(schedule.count(UnitEventKind::reduce) == 3 * 65'536);
}

}  // namespace
}  // namespace dtrain::parallel::unit_schedule_test
