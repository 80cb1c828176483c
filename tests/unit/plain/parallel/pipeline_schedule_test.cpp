#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/parallel/pipeline/check.h"
#include "dtrain/parallel/pipeline/schedule.h"
#include "support/action_ids.h"
#include "support/messages.h"

namespace dtrain::parallel::pipeline_schedule_test {
namespace {

using testing::operator""_m;
using dtrain::testing::Names;

using Catch::Matchers::Contains;
using Kind = ActionKind;

// "F3", or "F3.1" for chunk 1; ra, sa, rg, sg: receives and sends of activations and gradients.
std::string word(const PipelineShape& shape, const StageAction& action) {
  constexpr const char* kNames[] = {"F", "B", "sa", "ra", "sg", "rg"};
  const std::string chunk = shape.chunks() == 1 ? "" : fmt::format(".{}", action.chunk);
  return fmt::format("{}{}{}", kNames[static_cast<int>(action.kind)], action.microbatch.value(),
                     chunk);
}

std::string text_of(const PipelineShape& shape) {
  std::string text;
  std::int64_t stage = 0;
  for (const StageSchedule& schedule : make_pipeline_schedule(shape)) {
    text += fmt::format("stage {}:", stage++);
    for (const StageAction& action : schedule) text += " " + word(shape, action);
    text += "\n";
  }
  return text;
}

std::string stored(const std::string& name) {
  std::ifstream file(std::string(DTRAIN_SOURCE_DIR "/tests/unit/plain/parallel/schedules/") + name);
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// All schedule kinds, with valid sizes.
std::vector<PipelineShape> many_shapes() {
  std::vector<PipelineShape> shapes;
  for (const std::int64_t stages : {1, 2, 3, 4, 5, 8, 16}) {
    for (const std::int64_t microbatches : {1, 2, 3, 4, 7, 8, 16, 33}) {
      shapes.push_back({stages, microbatches, {PipelineKind::gpipe}});
      shapes.push_back({stages, microbatches, {PipelineKind::one_f_one_b}});
    }
    if (stages == 1) continue;
    for (const std::int64_t groups : {1, 2, 3, 5}) {
      for (const std::int64_t chunks : {2, 3, 4, 7}) {
        shapes.push_back({stages, stages * groups, {PipelineKind::interleaved, chunks}});
      }
    }
  }
  return shapes;
}

std::string name_of(const PipelineShape& shape) {
  return fmt::format("kind {}, {} stages, {} microbatches, {} chunks",
                     static_cast<int>(shape.order.kind), shape.stages, shape.microbatches,
                     shape.chunks());
}

TEST_CASE("The schedules of 4 stages and 8 microbatches are those of the papers' figures") {
  CHECK(text_of({4, 8, {PipelineKind::gpipe}}) == stored("gpipe.txt"));
  CHECK(text_of({4, 8, {PipelineKind::one_f_one_b}}) == stored("1f1b.txt"));
  CHECK(text_of({4, 8, {PipelineKind::interleaved, 2}}) == stored("interleaved_2.txt"));
}

TEST_CASE("Every schedule is executable, and its bubble matches the formula") {
  for (const PipelineShape& shape : many_shapes()) {
    INFO(name_of(shape));
    const auto schedules = make_pipeline_schedule(shape);
    check_pipeline_schedule(shape, schedules);
    const double expected = static_cast<double>(shape.stages - 1) /
                            static_cast<double>(shape.microbatches * shape.chunks());
    CHECK(simulate(shape, schedules).bubble == Approx(expected).epsilon(1e-12));
    CHECK(simulate(shape, schedules, {.forward = 3, .backward = 6}).bubble ==
          Approx(expected).epsilon(1e-12));
  }
}

TEST_CASE("1F1B keeps at most one microbatch per remaining stage, GPipe all") {
  for (const PipelineShape& shape : many_shapes()) {
    INFO(name_of(shape));
    const auto kept = check_pipeline_schedule(shape, make_pipeline_schedule(shape));
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      const InFlight& in_stage = kept[static_cast<std::size_t>(stage)];
      const std::int64_t to_end = shape.stages - stage;
      const std::int64_t all = shape.microbatches * shape.chunks();
      const std::int64_t warm_up = 2 * (to_end - 1) + (shape.chunks() - 1) * shape.stages;
      const std::int64_t expected = shape.order.kind == PipelineKind::gpipe ? all
                                    : shape.order.kind == PipelineKind::one_f_one_b
                                        ? std::min(to_end, all)
                                        : std::min(warm_up + 1, all);
      CHECK(in_stage.activations == expected);
      std::int64_t sum = 0;
      for (const std::int64_t of_chunk : in_stage.by_chunk) sum += of_chunk;
      CHECK(sum >= in_stage.activations);
    }
  }
}

TEST_CASE("A receive is posted exactly one pass early") {
  for (const PipelineShape& shape : many_shapes()) {
    INFO(name_of(shape));
    for (const StageSchedule& schedule : make_pipeline_schedule(shape)) {
      std::int64_t passes = 0;
      for (std::size_t i = 0; i < schedule.size(); ++i) {
        const StageAction& action = schedule[i];
        if (is_compute(action.kind)) ++passes;
        if (action.kind != Kind::recv_activation && action.kind != Kind::recv_gradient) continue;
        const Kind needs = action.kind == Kind::recv_activation ? Kind::forward : Kind::backward;
        std::int64_t between = 0;
        std::size_t j = i + 1;
        for (; schedule[j] != StageAction{needs, action.chunk, action.microbatch}; ++j) {
          if (is_compute(schedule[j].kind)) ++between;
        }
        CHECK(between == std::min<std::int64_t>(passes, 1) + (passes == 0 && between == 1));
      }
    }
  }
}

TEST_CASE("Interleaved schedules reject microbatches in incomplete groups, naming what fits") {
  CHECK_THROWS_WITH(make_pipeline_schedule({4, 6, {PipelineKind::interleaved, 2}}),
                    Names("--schedule-pp interleaved:2", "--pp 4", "--grad-accum", 6, "4 or 8"));
  CHECK_THROWS_WITH(make_pipeline_schedule({4, 3, {PipelineKind::interleaved, 2}}),
                    Names("--grad-accum", 3, "use 4"));
  CHECK_THROWS_WITH(make_pipeline_schedule({1, 3, {PipelineKind::interleaved, 2}}),
                    Contains("several stages"));
}

// Broken schedules: 2 stages and 2 microbatches of 1F1B, with one thing changed.
struct Broken {
  PipelineShape shape{2, 2, {PipelineKind::one_f_one_b}};
  std::vector<StageSchedule> schedules = make_pipeline_schedule(shape);

  StageSchedule& stage(std::size_t index) { return schedules.at(index); }
  void remove(std::size_t index, const StageAction& action) {
    REQUIRE(std::erase(stage(index), action) == 1);
  }
  void exchange(std::size_t index, const StageAction& a, const StageAction& b) {
    auto& list = stage(index);
    const auto first = std::find(list.begin(), list.end(), a);
    const auto second = std::find(list.begin(), list.end(), b);
    REQUIRE((first != list.end() && second != list.end()));
    std::swap(*first, *second);
  }
  void refused(const Names& names) const {
    CHECK_THROWS_WITH(check_pipeline_schedule(shape, schedules), names);
  }
};

TEST_CASE("A missing, a repeated and a foreign pass are detected") {
  Broken missing;
  missing.remove(0, {Kind::backward, 0, 1_m});
  missing.remove(1, {Kind::send_gradient, 0, 1_m});
  missing.refused(Names("stage 0", "backward of chunk 0, microbatch 1"));
  Broken twice;
  twice.stage(1).push_back({Kind::forward, 0, 1_m});
  twice.refused(Names("stage 1", "forward of chunk 0, microbatch 1", "twice"));
  Broken foreign;
  foreign.stage(0).push_back({Kind::forward, 1, 0_m});
  foreign.refused(Names("stage 0", "forward of chunk 1, microbatch 0"));
  Broken too_few;
  too_few.schedules.pop_back();
  too_few.refused(Names("1 action lists", "2 stages"));
}

TEST_CASE("A backward pass before its forward pass or out of order is detected") {
  Broken early;
  early.exchange(1, {Kind::forward, 0, 0_m}, {Kind::backward, 0, 0_m});
  early.refused(Names("stage 1", "backward of chunk 0", "microbatch 0 precedes forward"));
  Broken descending;
  descending.shape = {2, 2, {PipelineKind::gpipe}};
  descending.schedules = make_pipeline_schedule(descending.shape);
  for (const std::size_t stage : {std::size_t{0}, std::size_t{1}}) {
    descending.exchange(stage, {Kind::backward, 0, 0_m}, {Kind::backward, 0, 1_m});
  }
  descending.exchange(0, {Kind::recv_gradient, 0, 0_m}, {Kind::recv_gradient, 0, 1_m});
  descending.exchange(1, {Kind::send_gradient, 0, 0_m}, {Kind::send_gradient, 0, 1_m});
  descending.refused(Names("microbatch 1 precedes backward", "microbatch 0"));
}

TEST_CASE("A message that is not sent, or received too late, is detected") {
  Broken unsent;
  unsent.remove(0, {Kind::send_activation, 0, 1_m});
  unsent.refused(Names("stage 0", "send activation of chunk 0, microbatch 1"));
  Broken unreceived;
  unreceived.remove(1, {Kind::recv_activation, 0, 1_m});
  unreceived.refused(
      Names("stage 1", "forward of chunk 0, microbatch 1", name_of(Kind::recv_activation)));
  Broken late;
  late.exchange(1, {Kind::recv_activation, 0, 0_m}, {Kind::forward, 0, 0_m});
  late.refused(
      Names("stage 1", "forward of chunk 0, microbatch 0", name_of(Kind::recv_activation)));
  Broken into_nothing;
  into_nothing.stage(1).push_back({Kind::send_activation, 0, 0_m});
  into_nothing.refused(Names("stage 1", "send activation of chunk 0, microbatch 0", "matching"));
  Broken too_early;
  too_early.exchange(0, {Kind::send_activation, 0, 0_m}, {Kind::forward, 0, 0_m});
  too_early.refused(
      Names("stage 0", "send activation of chunk 0", "microbatch 0 precedes forward"));
}

TEST_CASE("Receives in a different order than sends are detected") {
  Broken crossed;
  crossed.shape = {2, 2, {PipelineKind::gpipe}};
  crossed.schedules = make_pipeline_schedule(crossed.shape);
  crossed.exchange(1, {Kind::recv_activation, 0, 0_m}, {Kind::recv_activation, 0, 1_m});
  crossed.refused(Names("stage 1", "activations", "stage 0"));
}

TEST_CASE("A deadlock between stages is detected") {
  // Stage 0 wants the gradient of microbatch 0 before it sends microbatch 1, stage 1 wants both
  // microbatches first.
  Broken deadlock;
  const auto gpipe = make_pipeline_schedule({2, 2, {PipelineKind::gpipe}});
  deadlock.stage(1) = gpipe[1];
  deadlock.stage(0) = {{Kind::recv_gradient, 0, 0_m},   {Kind::forward, 0, 0_m},
                       {Kind::send_activation, 0, 0_m}, {Kind::recv_gradient, 0, 1_m},
                       {Kind::backward, 0, 0_m},        {Kind::forward, 0, 1_m},
                       {Kind::send_activation, 0, 1_m}, {Kind::backward, 0, 1_m}};
  deadlock.refused(Names("deadlock", "stage 0", "backward of chunk 0, microbatch 0", "stage 1",
                         "forward of chunk 0, microbatch 1"));
}

TEST_CASE("A simulated stage runs one pass at a time, after its message has arrived") {
  const PipelineShape shape{4, 8, {PipelineKind::interleaved, 2}};
  const Simulation simulation = simulate(shape, make_pipeline_schedule(shape));
  CHECK(simulation.duration == 16 * 3 + 3 * 3);
  for (const auto& passes : simulation.stages) {
    for (std::size_t i = 1; i < passes.size(); ++i) CHECK(passes[i].begin >= passes[i - 1].end);
  }
  const auto end_of = [&](std::size_t stage, const StageAction& action) {
    const auto& passes = simulation.stages[stage];
    return std::find_if(passes.begin(), passes.end(),
                        [&](const TimedPass& pass) { return pass.action == action; })
        ->end;
  };
  for (const auto microbatch : base::first_ids<MicrobatchId>(8)) {
    double forward = 0;
    for (std::int64_t part = 0; part < 8; ++part) {
      const double end =
          end_of(static_cast<std::size_t>(part % 4), {Kind::forward, part / 4, microbatch});
      CHECK(end >= forward + 1);
      forward = end;
    }
    double backward = forward;
    for (std::int64_t part = 7; part >= 0; --part) {
      const double end =
          end_of(static_cast<std::size_t>(part % 4), {Kind::backward, part / 4, microbatch});
      CHECK(end >= backward + 2);
      backward = end;
    }
  }
}

}  // namespace
}  // namespace dtrain::parallel::pipeline_schedule_test
