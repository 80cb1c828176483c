#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <map>

#include "dtrain/base/clock.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/llama/settings.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/plan/rank_plan.h"
#include "support/engine_run.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/values.h"

namespace dtrain::parallel::plan_test {
namespace {

using mesh::Axis;
using testing::EngineRun;
using testing::expect;
using testing::Names;

Plan plan_of(const std::string& what, std::int64_t dp) {
  return make_plan(testing::sharded(testing::tiny_config(), dp, 1, what).layout);
}

Plan ddp_plan(std::int64_t dp) {
  return make_plan(testing::laid_out(testing::tiny_config(), dp, 1).layout);
}

TEST_CASE("Equivalent settings give equal plans") {
  for (const std::int64_t dp : {2, 4, 8}) {
    INFO(dp << " ranks");
    const std::string all = "hybrid:" + std::to_string(dp);
    CHECK(plan_of("zero:3", dp) == plan_of("fsdp:full", dp));
    CHECK(plan_of(all, dp) == plan_of("fsdp:full", dp));
    CHECK(plan_of("hybrid:1", dp) == ddp_plan(dp));
    CHECK(plan_of("fsdp:none", dp) == ddp_plan(dp));
    // Full gradients sharded at the end of a step are stage 1.
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

TEST_CASE("Different settings give different plans") {
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

TEST_CASE("Each strategy places its ranks on its own axis") {
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

TEST_CASE("Pipeline and tensor settings have no effect on a single-rank axis") {
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

TEST_CASE("Unit settings have no effect without sharding") {
  config::Config config = testing::tiny_config();
  set(config, "layout.wrap", "none");
  set(config, "layout.backward_prefetch", "post");
  config.layout.forward_prefetch = true;
  config.layout.limit_gathers = 7;
  CHECK(make_plan(testing::sharded(config, 4, 1, "fsdp:none").layout) == ddp_plan(4));
}

const mesh::MeshShape kMesh{{Axis::pp, 16}, {Axis::dp, 32}, {Axis::tp, 8}};  // 4,096 ranks
constexpr std::int64_t kLevels = 64;

// Ten billion parameters in untied layers, far more than this machine could hold.
config::Config large() {
  config::Config config;
  config.model = {.layers = kLevels,
                  .width = 2048,
                  .heads = 32,
                  .family = config::bdh::Settings{.neurons = 1024}};
  config::bdh::settings_of(config.model).tie_layers = false;
  config.data.seq_len = 2048;
  config.batch.global = 32 * 32;
  config.layout.data_axis = config::DataAxisKind::fsdp;
  set(config, "machine.dtype", "bfloat16");
  set(config, "machine.backend", "gloo");
  set(config, "machine.recompute", "level");
  return testing::meshed(config, kMesh, 32);
}

std::unique_ptr<model::Model> whole_model(const config::Config& config) {
  return model::make_model(config.model, config.data.seq_len);
}

// Counts every parameter over the ranks of one data shard: 1 each if stages and slices are
// complete.
double covered(const config::Config& config, const model::Model& whole) {
  double elements = 0;
  for (std::int64_t pp = 0; pp < kMesh[Axis::pp]; ++pp) {
    for (std::int64_t tp = 0; tp < kMesh[Axis::tp]; ++tp) {
      const RankPlan plan = rank_plan(config, {{Axis::pp, pp}, {Axis::dp, 0}, {Axis::tp, tp}});
      for (const param::ParameterSpec& spec : plan.model->parameters) {
        const double copies = spec.cut ? 1 : static_cast<double>(kMesh[Axis::tp]);
        elements += static_cast<double>(spec.num_elements()) / copies;
      }
    }
  }
  return elements / static_cast<double>(whole.num_elements());
}

TEST_CASE("Any rank of 4,096 is planned in milliseconds without allocating its model") {
  metrics::install_counting_allocator();
  const config::Config config = large();
  const mesh::DeviceMesh mesh(kMesh);
  const auto whole = whole_model(config);
  CHECK(whole->num_elements() > 10'000'000'000);
  const std::int64_t before = metrics::memory_use().current;
  metrics::restart_peak();
  const auto begin = base::Clock::now();
  std::int64_t planned = 0;
  for (std::int64_t rank = 0; rank < mesh.world_size(); rank += 89, ++planned) {
    const RankPlan plan = rank_plan(config, mesh.coordinate(rank));
    CHECK(plan.place.stage == mesh.coordinate(rank)[Axis::pp]);
    CHECK(plan.memory.total() > (std::int64_t{1} << 28));
    CHECK(plan.traffic.gathers > 0);
    CHECK(plan.units.num_shards() == kMesh[Axis::dp]);
  }
  CHECK(metrics::memory_use().peak - before < (std::int64_t{1} << 20));
  const double milliseconds = 1e3 * base::seconds_since(begin) / static_cast<double>(planned);
  WARN("a rank's plan takes " << milliseconds << " ms");
  CHECK(milliseconds < 100);
  CHECK(covered(config, *whole) == Approx(1));
}

TEST_CASE("The FLOPs of all ranks are those of the model, and recomputing a level adds a third") {
  const config::Config config = large();
  const mesh::DeviceMesh mesh(kMesh);
  const auto whole = whole_model(config);
  double passes = 0;
  double recomputed = 0;
  for (std::int64_t pp = 0; pp < kMesh[Axis::pp]; ++pp) {
    const RankPlan plan = rank_plan(config, {{Axis::pp, pp}, {Axis::dp, 3}, {Axis::tp, 5}});
    passes += plan.flops.passes;
    recomputed += plan.flops.recomputed;
  }
  const double ranks = static_cast<double>(kMesh[Axis::dp] * kMesh[Axis::tp]);
  const double tokens = static_cast<double>(config.batch.global * config.data.seq_len);
  const double head = 3 * whole->costs.back().forward_flops_per_token * tokens;
  CHECK(passes * ranks == Approx(tokens * whole->training_flops_per_token()));
  CHECK(3 * recomputed * ranks == Approx(passes * ranks - head));
}

std::string text_of(const RankPlan& plan) {
  std::string text = fmt::format(
      "stage {} memory {} state {} gathers {} reductions {} of {} bytes, {} FLOPs, {} elements in "
      "{} units, chunks {}",
      plan.place.stage, plan.memory.total(), plan.memory.state, plan.traffic.gathers,
      plan.traffic.reductions, plan.traffic.reduction_bytes, plan.flops.passes,
      plan.units.num_elements(), plan.units.num_units(), plan.options.stage.chunk_begins.size());
  for (const param::ParameterSpec& spec : plan.model->parameters) {
    text += fmt::format(" {} from {}", spec.name, spec.cut ? spec.cut->begin : 0);
  }
  return text;
}

const mesh::MeshShape kCube{{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}};
const mesh::MeshShape kFirst{{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, 0}};

TEST_CASE("Any process makes the same plan for a rank") {
  config::Config config = testing::tiny_config();
  config.model.layers = 4;
  config::bdh::settings_of(config.model).tie_layers = false;
  config.layout.data_axis = config::DataAxisKind::fsdp;
  config::Config meshed = testing::meshed(config, kCube, 2);
  meshed.machine.backend = config::Backend::local;  // the backend of ranks as threads
  std::vector<std::string> plans;
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    plans.push_back(text_of(rank_plan(meshed, mesh::DeviceMesh(kCube).coordinate(rank))));
  }
  CHECK(plans[0] != plans[1]);  // other slices
  CHECK(plans[0] == plans[2]);  // other data
  CHECK(plans[0] != plans[4]);  // other layers
  testing::on_threads(8, [&](comm::World& world) {
    EngineRun run(meshed, world);
    const std::string found = text_of(run.job().plan());
    expect(found == plans[static_cast<std::size_t>(world.rank())], found);
  });
}

TEST_CASE("A plan's memory depends on the rank's threads, not on this process's") {
  config::Config config = testing::with_dtypes(testing::laid_out(testing::tiny_config(), 1, 1));
  set(config, "machine.kernels", "fused");
  const auto memory = [&config](std::int64_t threads) {
    config.machine.threads = threads;
    return rank_plan(config, kFirst).memory.total();
  };
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const std::int64_t of_four = memory(4);
  CHECK(of_four > memory(1));
  at::set_num_threads(2);
  CHECK(memory(4) == of_four);
  at::set_num_threads(before);
}

TEST_CASE("Tensor ranks with slices of other sizes recompute the same layers") {
  config::Config config = testing::tiny_config();
  config.model = {.name = "llama",
                  .layers = 4,
                  .width = 24,
                  .heads = 2,
                  .family = config::llama::Settings{.intermediate = 301},
                  .vocab = 257};
  config.layout.tp_vocab = true;
  set(config, "machine.backend", "gloo");
  config = testing::with_dtypes(testing::meshed(config, {{Axis::tp, 2}}, 1));
  const auto plan = [&](std::int64_t rank) {
    return rank_plan(config, {{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, rank}});
  };
  const std::int64_t of_second = plan(1).memory.peak();
  CHECK(plan(0).memory.peak() > of_second);
  set(config, "machine.recompute", "auto");
  config.machine.memory_limit.count = of_second;  // only the first rank needs to recompute
  const RecomputePlan chosen = plan(0).options.recompute;
  CHECK_FALSE(chosen == RecomputePlan{});
  CHECK(plan(1).options.recompute == chosen);
}

TEST_CASE("Precision holds all dtypes of a run") {
  config::Config config = testing::with_dtypes(testing::laid_out(testing::tiny_config(), 2, 1));
  CHECK(precision_of(config) == Precision{});
  config.machine = {};
  set(config, "machine.dtype", "float16");
  config = testing::with_dtypes(config);
  CHECK(precision_of(config) == Precision{.compute = at::kHalf, .scales_loss = true});
  config.machine = {};
  set(config, "machine.reduce_dtype", "bfloat16");
  config = testing::with_dtypes(config);
  CHECK(precision_of(config) == Precision{.reduce = at::kBFloat16});
  config.layout.dp = 1;  // a single rank sends nothing
  CHECK(precision_of(config) == Precision{});
  config.machine = {};
  set(config, "machine.dtype", "float64");
  config = testing::with_dtypes(config);
  const at::ScalarType wide = at::kDouble;
  CHECK(precision_of(config) ==
        Precision{.master = wide, .compute = wide, .reduce = wide, .buffer = wide});
}

TEST_CASE("A plan rejects unknown parameter names and memory limits that cannot be met") {
  config::Config config = testing::tiny_config();
  config = testing::with_dtypes(testing::laid_out(config, 1, 1));
  config.train.freeze = {"encode"};
  CHECK_THROWS_WITH(rank_plan(config, kFirst), Names("--freeze", "encode", "encoder"));
  config.train.freeze = {"encoder"};
  CHECK_NOTHROW(rank_plan(config, kFirst));
  set(config, "machine.memory_limit", "1kB");
  CHECK_THROWS_WITH(rank_plan(config, kFirst), Names("--memory-limit 1kB", "--recompute"));
}

}  // namespace
}  // namespace dtrain::parallel::plan_test
