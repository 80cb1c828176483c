// How long the stages of a pipeline wait, with blocks of known duration; printed only:
// dist_tests "[.bench-bubble]", or scripts/bench.sh bubble.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/engine/make_stage.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/parallel/pipeline/check.h"
#include "support/oracles/small_blocks.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::testing::bubble_bench_test {
namespace {

constexpr std::int64_t kStages = 4;
constexpr std::int64_t kMicrobatches = 8;
constexpr std::int64_t kLevels = 8;
constexpr std::chrono::milliseconds kForward{40};
constexpr std::chrono::milliseconds kBackward{80};
constexpr int kSteps = 3;

std::unique_ptr<model::Model> sleeping_model() {
  const BlockWatch watch{.on_forward = [] { std::this_thread::sleep_for(kForward); },
                         .on_backward = [] { std::this_thread::sleep_for(kBackward); }};
  return small_model(std::vector<BlockWatch>(kLevels, watch));
}

parallel::StagePosition place_of(const parallel::PipelineShape& shape, std::int64_t stage) {
  parallel::StagePosition place{.shape = shape, .parts = {}, .stage = stage};
  const std::int64_t size = kLevels / shape.num_parts();
  for (std::int64_t part = 0; part < shape.num_parts(); ++part) {
    const model::BlockId begin(1 + part * size);
    place.parts.push_back({begin, begin + size});
  }
  place.parts.front().begin = model::BlockId(0);
  place.parts.back().end = model::BlockId(kLevels + 2);
  return place;
}

// Idle over busy time of a step, from how long it took.
double measured_bubble(const parallel::PipelineShape& shape) {
  std::vector<double> seconds(kSteps);
  on_threads(kStages, [&](comm::World& world) {
    parallel::Stage stage = parallel::make_stage(sleeping_model(), place_of(shape, world.rank()));
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::pp, kStages}}),
                                  {.stages = stage.plan.holders.values()});
    parallel::StepEngine engine(*stage.model, world, groups,
                                {.grad_accum_steps = kMicrobatches, .stage = stage.plan});
    const std::vector<data::Batch> batches(kMicrobatches, small_batch(0));
    for (double& step : seconds) {
      groups.world().barrier();
      const auto start = base::Clock::now();
      engine.forward_backward(batches);
      groups.world().barrier();
      if (world.rank() == 0) step = base::seconds_since(start);
    }
  });
  const double busy = 1e-3 * static_cast<double>(kMicrobatches * kLevels / kStages *
                                                 (kForward.count() + kBackward.count()));
  return *std::min_element(seconds.begin(), seconds.end()) / busy - 1;
}

TEST_CASE("The bubble of each schedule, printed and measured", "[.bench-bubble]") {
  using parallel::PipelineKind;
  const std::vector<std::pair<std::string, parallel::PipelineShape>> shapes{
      {"gpipe", {kStages, kMicrobatches, {PipelineKind::gpipe, 1}}},
      {"1f1b", {kStages, kMicrobatches, {PipelineKind::one_f_one_b, 1}}},
      {"interleaved:2", {kStages, kMicrobatches, {PipelineKind::interleaved, 2}}}};
  for (const auto& [name, shape] : shapes) {
    const double printed = simulate(shape, make_pipeline_schedule(shape)).bubble;
    const double measured = measured_bubble(shape);
    std::printf("%s", fmt::format("  {:<14} {} stages, {} microbatches: bubble {:.3f} printed, "
                                  "{:.3f} measured ({:+.1f} %)\n",
                                  name, kStages, kMicrobatches, printed, measured,
                                  100 * (measured / printed - 1))
                          .c_str());
  }
}

}  // namespace
}  // namespace dtrain::testing::bubble_bench_test
