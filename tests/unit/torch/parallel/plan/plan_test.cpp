#include <catch2/catch.hpp>
#include <map>

#include "dtrain/config/layout.h"
#include "dtrain/config/resolve.h"
#include "dtrain/parallel/plan/rank_plan.h"
#include "support/engine_run.h"
#include "support/settings.h"

namespace dtrain::parallel::plan_test {
namespace {

using mesh::Axis;

Plan plan_of(const std::string& what, std::int64_t dp) {
  return make_plan(testing::sharded(testing::tiny_config(), dp, 1, what).layout);
}

Plan ddp_plan(std::int64_t dp) {
  return make_plan(testing::laid_out(testing::tiny_config(), dp, 1).layout);
}

TEST_CASE("Settings that mean the same give equal plans") {
  for (const std::int64_t dp : {2, 4, 8}) {
    INFO(dp << " ranks");
    const std::string all = "hybrid:" + std::to_string(dp);
    CHECK(plan_of("zero:3", dp) == plan_of("fsdp:full", dp));
    CHECK(plan_of(all, dp) == plan_of("fsdp:full", dp));
    CHECK(plan_of("hybrid:1", dp) == ddp_plan(dp));
    CHECK(plan_of("fsdp:none", dp) == ddp_plan(dp));
    // Whole gradients that are cut when a step ends: nothing is left of stage 2.
    CHECK(plan_of("zero:2+local", dp) == plan_of("zero:1", dp));
    for (const std::int64_t stage : {1, 2, 3}) {
      config::Config config = testing::laid_out(testing::tiny_config(), dp, 1);
      set(config, "layout.strategy", "deepspeed");
      config.layout.zero_stage = stage;
      config = config::resolve(config::Command::train, config, {.world_size = dp});
      CHECK(make_plan(config.layout) == plan_of("zero:" + std::to_string(stage), dp));
    }
  }
  for (const char* what : {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2", "zero:3", "hybrid:1"}) {
    INFO(what << " on one rank");
    CHECK(plan_of(what, 1) == ddp_plan(1));
  }
}

TEST_CASE("Settings that mean different things give different plans") {
  std::map<std::string, Plan> plans{{"ddp", ddp_plan(4)}};
  for (const char* what : {"zero:1", "zero:2", "fsdp:grad-op", "fsdp:full", "hybrid:2",
                           "fsdp:full+local", "fsdp:grad-op+local", "hybrid:2+local"}) {
    plans.emplace(what, plan_of(what, 4));
  }
  config::Config config = testing::tiny_config();
  set(config, "layout.wrap", "size:100");
  plans.emplace("wrap", make_plan(testing::sharded(config, 4, 1, "fsdp:full").layout));
  set(config, "layout.wrap", "none");
  plans.emplace("no wrap", make_plan(testing::sharded(config, 4, 1, "fsdp:full").layout));
  for (const auto& [name, plan] : plans) {
    for (const auto& [other, other_plan] : plans) {
      INFO(name << " and " << other);
      CHECK((plan == other_plan) == (name == other));
    }
  }
}

config::LayoutConfig sizes(const mesh::MeshShape& mesh) {
  config::LayoutConfig layout;
  for (const Axis axis : mesh::kAxes) config::size_of(layout, axis) = mesh[axis];
  return layout;
}

config::LayoutConfig threads(std::int64_t local_ranks) {
  config::LayoutConfig layout;
  layout.local_ranks = local_ranks;
  return layout;
}

TEST_CASE("Each strategy takes its ranks along its own axis") {
  const auto plan = [](const std::string& strategy, std::int64_t ranks,
                       config::LayoutConfig layout = {}) {
    config::Config config = testing::tiny_config();
    config.batch = {};
    config.layout = layout;
    set(config, "layout.strategy", strategy);
    return make_plan(config::resolve(config::Command::train, config, {.world_size = ranks}).layout);
  };
  CHECK(plan("tp", 4).mesh == mesh::MeshShape{{Axis::tp, 4}});
  CHECK(plan("pp", 2).mesh == mesh::MeshShape{{Axis::pp, 2}});
  CHECK(plan("dp", 1, threads(4)) == ddp_plan(4));
  CHECK(plan("mp", 1, threads(2)) == plan("pp", 2));
  config::LayoutConfig fsdp = sizes({{Axis::pp, 2}, {Axis::dp, 0}, {Axis::tp, 2}});
  fsdp.data_axis = config::DataAxisKind::fsdp;
  CHECK(plan("3d", 16, fsdp).mesh == mesh::MeshShape{{Axis::pp, 2}, {Axis::dp, 4}, {Axis::tp, 2}});
  CHECK(plan("3d", 16, fsdp).data == plan_of("fsdp:full", 4).data);
  fsdp.data_axis = config::DataAxisKind::zero;
  CHECK(plan("3d", 16, fsdp).data == plan_of("zero:2", 4).data);
  fsdp.data_axis = config::DataAxisKind::ddp;
  CHECK(plan("3d", 16, fsdp).data == ddp_plan(4).data);
}

TEST_CASE("Settings of the pipeline and the tensor axis mean nothing on an axis of one rank") {
  config::LayoutConfig layout = sizes({{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}});
  layout.schedule_pp = {.kind = PipelineKind::interleaved, .chunks = 2};
  layout.pp_split = {{1, 2, 3, 4}};
  layout.tp_vocab = true;
  const Plan plan = make_plan(layout);
  CHECK(plan.splits_vocab);
  CHECK(plan.pipeline == PipelinePlan{.order = layout.schedule_pp, .split = {1, 2, 3, 4}});
  layout.pp = 1;
  CHECK(make_plan(layout).pipeline == PipelinePlan{});
  layout.tp = 1;
  CHECK_FALSE(make_plan(layout).splits_vocab);
}

TEST_CASE("Settings of units mean nothing where nothing is sharded") {
  config::Config config = testing::tiny_config();
  set(config, "layout.wrap", "none");
  set(config, "layout.backward_prefetch", "post");
  config.layout.forward_prefetch = true;
  config.layout.limit_gathers = 7;
  CHECK(make_plan(testing::sharded(config, 4, 1, "fsdp:none").layout) == ddp_plan(4));
}

}  // namespace
}  // namespace dtrain::parallel::plan_test
