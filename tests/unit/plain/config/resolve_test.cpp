#include "dtrain/config/resolve/resolve.h"

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/config/resolve/notices.h"
#include "dtrain/config/values/batch.h"
#include "support/messages.h"
#include "support/settings.h"

namespace resolve_test {
namespace {

using namespace dtrain::config;
using dtrain::testing::Names;

struct Batch {
  std::int64_t global;
  std::int64_t microbatch;
  std::int64_t grad_accum;
  bool operator==(const Batch&) const = default;
};

Config resolve_train(Config config, std::int64_t ranks = 1) {
  if (ranks > 1 && config.layout.strategy == Strategy::single) {
    config.layout.strategy = Strategy::ddp;
  }
  return resolve(Command::train, std::move(config),
                 {.world_size = ranks, .local_world_size = ranks, .usable_cores = 8});
}

Batch batch_of(const Batch& given, std::int64_t ranks) {
  Config config;
  config.batch = {given.global, given.microbatch, given.grad_accum};
  const BatchConfig batch = resolve_train(config, ranks).batch;
  return {batch.global, batch.microbatch, batch.grad_accum};
}

void check_refused(const Config& config, const Names& names, std::int64_t ranks = 1) {
  CHECK_THROWS_WITH(resolve_train(config, ranks), names);
}

TEST_CASE("Missing batch sizes are derived from the given ones") {
  CHECK(batch_of({0, 0, 0}, 2) == Batch{8, 1, 4});
  CHECK(batch_of({0, 0, 0}, 3) == Batch{9, 1, 3});
  CHECK(batch_of({0, 0, 0}, 16) == Batch{16, 1, 1});
  CHECK(batch_of({8, 0, 0}, 1) == Batch{8, 8, 1});
  CHECK(batch_of({8, 0, 0}, 2) == Batch{8, 4, 1});
  CHECK(batch_of({0, 2, 0}, 4) == Batch{8, 2, 1});
  CHECK(batch_of({0, 0, 3}, 2) == Batch{6, 1, 3});
  CHECK(batch_of({24, 2, 0}, 4) == Batch{24, 2, 3});
  CHECK(batch_of({24, 0, 3}, 4) == Batch{24, 2, 3});
  CHECK(batch_of({0, 2, 3}, 4) == Batch{24, 2, 3});
  CHECK(batch_of({24, 2, 3}, 4) == Batch{24, 2, 3});
}

TEST_CASE("Inconsistent batch sizes are rejected with the numbers") {
  Config config;
  config.batch = {8, 2, 3};
  check_refused(
      config,
      Names("--global-batch 8", "--microbatch 2", "--grad-accum 3", "2 data-parallel ranks", 12),
      2);
  config.batch = {7, 0, 0};
  check_refused(config, Names("--global-batch 7", "2 data-parallel ranks"), 2);
  config.batch = {8, 3, 0};
  check_refused(config, Names("--global-batch 8", "--microbatch 3"));
  config.batch = {8, 0, 3};
  check_refused(config, Names("--global-batch 8", "--grad-accum 3"));
}

TEST_CASE("An automatic microbatch is the largest divisor of a rank's share, up to 8") {
  const auto resolved = [](std::int64_t global, std::int64_t ranks) {
    Config config;
    config.batch.global = global;
    if (ranks > 1) set(config, "layout.strategy", "ddp");
    return resolve_train(config, ranks);
  };
  CHECK(resolved(64, 1).batch.microbatch == 8);
  CHECK(resolved(64, 1).batch.grad_accum == 8);
  CHECK(resolved(12, 2).batch.microbatch == 6);
  CHECK(resolved(34, 2).batch.microbatch == 1);
  Config config = resolved(48, 2);  // 24 of each rank
  CHECK(microbatch_candidates(config, 8) == std::vector<std::int64_t>{8, 6, 4, 3, 2, 1});
  CHECK(microbatch_candidates(config, 5) == std::vector<std::int64_t>{4, 3, 2, 1});
  CHECK(microbatch_candidates(config, 0).empty());
  set_microbatch(config, 3);
  CHECK(config.batch.grad_accum == 8);
  CHECK(is_microbatch_automatic({64, 0, 0}));
  for (const BatchConfig& given : {BatchConfig{64, 8, 0}, BatchConfig{64, 0, 2}, BatchConfig{}}) {
    CHECK_FALSE(is_microbatch_automatic(given));
  }
}

TEST_CASE("The strategy must fit the world size") {
  Config config;
  CHECK(resolve_train(config).layout.dp == 1);
  CHECK_THROWS_WITH(resolve(Command::train, config, {.world_size = 2}),
                    Names("--strategy single", "2 ranks", "--strategy ddp"));
  set(config, "layout.strategy", "ddp");
  CHECK(resolve_train(config, 4).layout.dp == 4);
  CHECK(resolve_train(config, 1).layout.dp == 1);
  config.layout.dp = 2;
  check_refused(config, Names("--dp 2", "--strategy ddp", "4 ranks"), 4);
  CHECK(resolve_train(config, 2).layout.dp == 2);
}

TEST_CASE("The setting --nnodes must agree with the launch") {
  Config config;
  config.layout.nnodes = 2;
  check_refused(config, Names("--nnodes 2", "1 node"));
  const Launch two_nodes = {.world_size = 2, .num_nodes = 2};
  set(config, "layout.strategy", "ddp");
  CHECK(resolve(Command::train, config, two_nodes).layout.nnodes == 2);
  config.layout.nnodes = 0;
  CHECK(resolve(Command::train, config, two_nodes).layout.nnodes == 2);
}

TEST_CASE("Automatic machine settings become concrete") {
  const MachineConfig one = resolve_train({}).machine;
  CHECK(one.backend == Backend::none);
  CHECK(one.device.is_cpu());
  CHECK(one.threads == 8);
  const MachineConfig two = resolve_train({}, 2).machine;
  CHECK(two.backend == Backend::shm);
  CHECK(two.threads == 4);
  CHECK(resolve(Command::train, {}, {.threads_hint = 3, .usable_cores = 8}).machine.threads == 3);
  Config config;
  config.machine.threads = 5;
  CHECK(resolve(Command::train, config, {.threads_hint = 3}).machine.threads == 5);
  set(config, "layout.strategy", "ddp");
  config.machine.threads = 0;
  CHECK(resolve(Command::train, config, {.world_size = 4, .local_world_size = 4, .usable_cores = 2})
            .machine.threads == 1);
  set(config, "machine.backend", "none");
  check_refused(config, Names("--backend none", "2 ranks"), 2);
}

TEST_CASE("The choice of an automatic device is reported on machines with GPUs") {
  const auto note = [](const char* asked, const char* taken, const Launch& launch) {
    Config before, after;
    set(before, "machine.device", asked);
    set(after, "machine.device", taken);
    return device_note(before, after, launch);
  };
  const Launch one_gpu{.devices = {"cuda"}, .num_gpus = 1};
  CHECK_THAT(note("auto", "cuda", one_gpu), Names("--device auto", "cuda", "1 GPU"));
  CHECK_THAT(note("auto", "cpu", one_gpu), Names("--device auto", "cpu", "1 GPU"));
  CHECK_THAT(note("auto", "cpu", {.num_gpus = 2}), Names("cpu", "2 GPUs", "build.sh dtrain_cuda"));
  CHECK(note("auto", "cpu", {.devices = {"cuda"}}).empty());
  CHECK_THAT(note("auto", "cpu", {.devices = {"cuda"}, .no_gpu_reason = "they are hidden"}),
             Names("--device auto", "cpu", "they are hidden"));
  CHECK(note("auto", "cpu", {.no_gpu_reason = "they are hidden"}).empty());
  CHECK(note("cpu", "cpu", {.devices = {"cuda"}, .no_gpu_reason = "they are hidden"}).empty());
  CHECK(note("cuda", "cuda", one_gpu).empty());
}

TEST_CASE("Reductions are ordered on the CPU, and fast on a device unless requested otherwise") {
  const auto reduction = [](const char* device, const char* asked, std::int64_t ranks = 1) {
    Config config;
    set(config, "machine.device", device);
    set(config, "machine.reduction", asked);
    set(config, "layout.strategy", ranks > 1 ? "ddp" : "single");
    const Launch launch{
        .world_size = ranks, .local_world_size = ranks, .devices = {"cuda"}, .num_gpus = ranks};
    return resolve(Command::train, config, launch).machine.reduction;
  };
  CHECK(reduction("cpu", "auto") == Reduction::ordered);
  CHECK(reduction("auto", "auto", 2) == Reduction::fast);
  CHECK(reduction("cuda", "auto") == Reduction::fast);
  CHECK(reduction("cuda", "ordered") == Reduction::ordered);
  CHECK(reduction("cpu", "fast") == Reduction::fast);
}

TEST_CASE("With fast reductions the shard size of hybrid need not be a power of two") {
  Config config;
  set(config, "layout.strategy", "fsdp");
  set(config, "layout.fsdp_sharding", "hybrid");
  set(config, "layout.shard_size", "3");
  config.batch.global = 6;
  check_refused(config, Names("--shard-size 3", "--reduction ordered"), 6);
  set(config, "machine.device", "cuda");
  const Launch launch{.world_size = 6, .local_world_size = 3, .devices = {"cuda"}, .num_gpus = 3};
  CHECK(resolve(Command::train, config, launch).layout.shard_size == 3);
}

TEST_CASE("Graphs are rejected for layouts that they cannot capture") {
  const auto refused = [](std::string_view strategy, std::string_view offload, const Names& names) {
    Config config;
    config.machine.compile = true;
    set(config, "layout.strategy", strategy);
    set(config, "machine.device", "cuda");
    set(config, "machine.offload", offload);
    const bool is_single = strategy == "single";
    const Launch launch{.world_size = is_single ? 1 : 2, .devices = {"cuda"}};
    CHECK_THROWS_WITH(resolve(Command::train, config, launch), names);
  };
  refused("tp", "none", Names("--compile", "--tp 2"));
  refused("pp", "none", Names("--compile", "--pp 2"));
  refused("single", "all", Names("--compile", "--offload all"));
  Config config;
  config.machine.compile = true;
  CHECK(resolve(Command::train, config, {}).machine.kernels == Kernels::fused);  // on the CPU
  set(config, "machine.kernels", "plain");
  check_refused(config, Names("--compile", "--kernels plain"));
  set(config, "machine.kernels", "auto");
  set(config, "machine.device", "cuda");
  for (const std::int64_t ranks : {1, 2}) {
    config.layout.strategy = ranks == 1 ? Strategy::single : Strategy::fsdp;
    CHECK(resolve(Command::train, config, {.world_size = ranks, .devices = {"cuda"}})
              .machine.compile);
  }
}

TEST_CASE("An automatic device needs both a plugin and a driver") {
  const auto taken = [](const char* asked, std::int64_t num_gpus, std::int64_t ranks = 1) {
    Config config;
    set(config, "machine.device", asked);
    if (ranks > 1) set(config, "layout.strategy", "ddp");
    const Launch launch{.world_size = ranks,
                        .local_world_size = ranks,
                        .usable_cores = 8,
                        .devices = {"cuda"},
                        .num_gpus = num_gpus};
    return resolve(Command::train, config, launch).machine.device.text();
  };
  CHECK(taken("auto", 1) == "cuda");
  CHECK(taken("auto", 0) == "cpu");
  CHECK(taken("auto", 1, 2) == "cpu");
  CHECK(taken("auto", 2, 2) == "cuda");
  CHECK(taken("cpu", 1) == "cpu");
  CHECK(taken("cuda:3", 0) == "cuda:3");
  Config config;
  set(config, "layout.strategy", "dp");
  set(config, "layout.devices", "0,1");
  CHECK(resolve(Command::train, config, {.devices = {"cuda"}}).machine.device.text() == "cuda");
  set(config, "layout.strategy", "single");  // which ignores --devices
  CHECK(resolve(Command::train, config, {.devices = {"cuda"}}).machine.device.text() == "cpu");
  set(config, "layout.strategy", "dp");
  set(config, "machine.device", "cpu");
  CHECK_THROWS_WITH(resolve(Command::train, config, {.devices = {"cuda"}}),
                    Names("--devices 0,1", "--device", "cpu"));
  set(config, "layout.devices", "cpu,1");
  CHECK_THROWS_WITH(resolve(Command::train, config, {.devices = {"cuda"}}),
                    Names("--devices cpu,1", "GPUs", "CPU"));
  config = {};
  for (const char* device : {"cuda", "cuda:1", "cud"}) {
    set(config, "machine.device", device);
    check_refused(config, Names("--device", device, "auto, cpu", "libdtrain_cuda.so"));
  }
}

TEST_CASE("An automatic backend depends on the number of nodes, if it is known") {
  Config config;
  set(config, "layout.strategy", "ddp");
  const auto backend = [&](std::int64_t nodes) {
    return resolve(Command::train, config, {.world_size = 4, .num_nodes = nodes}).machine.backend;
  };
  CHECK(backend(1) == Backend::shm);
  CHECK(backend(2) == Backend::hier);
  CHECK(backend(0) == Backend::automatic);
  set(config, "machine.backend", "gloo");
  CHECK(backend(1) == Backend::gloo);
}

TEST_CASE("Contradictory settings are rejected") {
  Config config;
  set(config, "model.neurons", "511");
  check_refused(config, Names("--neurons 511"));
  config = {};
  set(config, "train.schedule", "linear");
  config.train.min_lr = 0.01;
  check_refused(config, Names("--min-lr 0.01", "--lr 0.003", "linear"));
  config = {};
  config.data.validation = "v.bin";
  config.data.val_fraction = 0.1;
  check_refused(config, Names("--val-data v.bin", "--val-fraction 0.1"));
}

TEST_CASE("Automatic dtypes follow --dtype, except that reductions and buffers stay float32") {
  struct Expected {
    Dtype dtype, param, reduce, buffer;
  };
  using enum Dtype;
  const Expected expected = GENERATE(
      Expected{float32, float32, float32, float32}, Expected{float64, float64, float64, float64},
      Expected{bfloat16, bfloat16, float32, float32}, Expected{float16, float16, float32, float32});
  Config config;
  config.machine.dtype = expected.dtype;
  const MachineConfig found = resolve_train(config).machine;
  CHECK(found.param_dtype == expected.param);
  CHECK(found.reduce_dtype == expected.reduce);
  CHECK(found.buffer_dtype == expected.buffer);
  CHECK(needs_loss_scaling(found) == (expected.dtype == float16));
}

TEST_CASE("Dtypes may be given separately, but float64 is for all or none") {
  Config config;
  set(config, "machine.param_dtype", "bfloat16");
  set(config, "machine.reduce_dtype", "float16");
  set(config, "machine.buffer_dtype", "bfloat16");
  const MachineConfig found = resolve_train(config).machine;
  CHECK(found.dtype == Dtype::float32);
  CHECK(found.param_dtype == Dtype::bfloat16);
  CHECK(found.reduce_dtype == Dtype::float16);
  CHECK(found.buffer_dtype == Dtype::bfloat16);
  CHECK(needs_loss_scaling(found));
  set(config, "machine.buffer_dtype", "float64");
  check_refused(config, Names("--buffer-dtype float64", "--dtype float32"));
  config = {};
  set(config, "machine.dtype", "float64");
  set(config, "machine.reduce_dtype", "float32");
  check_refused(config, Names("--reduce-dtype float32", "--dtype float64"));
  config = {};
  set(config, "machine.param_dtype", "float64");
  check_refused(config, Names("--param-dtype float64", "--dtype float32"));
}

TEST_CASE("An epsilon that rounds to zero in the optimizer's dtype is rejected") {
  Config config;
  config.train.eps = 1e-50;
  check_refused(config, Names("--eps", "1e-50", "float32"));
  set(config, "machine.dtype", "float16");  // whose optimizer state is float32
  check_refused(config, Names("--eps", "1e-50", "float32"));
  config.train.eps = 1e-12;
  CHECK_NOTHROW(resolve_train(config));
  config = {};
  config.train.eps = 1e-50;
  set(config, "machine.dtype", "float64");
  CHECK_NOTHROW(resolve_train(config));
  config = {};
  config.train.eps = 1e-50;
  set(config, "train.optimizer", "sgd");  // it has none
  CHECK_NOTHROW(resolve_train(config));
}

TEST_CASE("Automatic rates follow the width and the steps") {
  Config config;
  config.train.steps = 1000;
  const TrainConfig narrow = resolve_train(config).train;
  CHECK(narrow.lr == 3e-3);
  CHECK(narrow.min_lr == 3e-3 / 10);
  CHECK(narrow.warmup_steps == 50);
  config.model.width = 256;
  CHECK(resolve_train(config).train.lr == 1.5e-3);
  config.model.width = 32;
  CHECK(resolve_train(config).train.lr == 3e-3);
  config.train.lr = 1e-2;
  CHECK(resolve_train(config).train.min_lr == 1e-3);
  config.train.lr = 0.0;
  config.train.warmup_steps = 0;
  config.train.min_lr = 0.0;
  const TrainConfig given = resolve_train(config).train;
  CHECK(given.lr == 0.0);
  CHECK(given.min_lr == 0.0);
  CHECK(given.warmup_steps == 0);
}

TEST_CASE("A run shorter than its warm-up warms up over its first half") {
  Config config;
  config.train.steps = 1000;
  config.train.warmup_steps = 1000;
  CHECK(resolve_train(config).train.warmup_steps == 1000);
  config.train.warmup_steps = 1001;
  CHECK(resolve_train(config).train.warmup_steps == 500);
  config.train.steps = 1;
  CHECK(resolve_train(config).train.warmup_steps == 0);
  config.train.steps = 10;
  set(config, "train.schedule", "wsd");
  CHECK(resolve_train(config).train.warmup_steps == 5);
}

TEST_CASE("The decay defaults to a tenth of the steps, rounded up") {
  Config config;
  config.train.steps = 101;
  CHECK(resolve_train(config).train.decay_steps == 11);
  config.train.warmup_steps = 90;
  CHECK(resolve_train(config).train.decay_steps == 11);
  config.train.warmup_steps = 91;  // it leaves 10
  CHECK(resolve_train(config).train.decay_steps == 10);
  config.train.warmup_steps = 101;
  CHECK(resolve_train(config).train.decay_steps == 0);
  config.train.warmup_steps = 91;
  config.train.decay_steps = 11;
  check_refused(config, Names("--warmup-steps 91", "--decay-steps 11", "--steps 101"));
  config.train.decay_steps = 10;
  CHECK(resolve_train(config).train.decay_steps == 10);
  set(config, "train.schedule", "constant");
  config.train.decay_steps = 0;
  CHECK(resolve_train(config).train.decay_steps == 0);
  set(config, "train.schedule", "wsd");
  config.train.min_lr = 1;
  check_refused(config, Names("--min-lr 1", "--lr", "wsd"));
}

Config with_strategy(const std::string& strategy) {
  Config config;
  set(config, "layout.strategy", strategy);
  return config;
}

TEST_CASE("The shard size defaults to all ranks, and with hybrid to a node's ranks") {
  const auto shard_size = [](const std::string& strategy, std::int64_t ranks) {
    return resolve_train(with_strategy(strategy), ranks).layout.shard_size;
  };
  CHECK(shard_size("ddp", 4) == 1);
  CHECK(shard_size("zero", 4) == 4);
  CHECK(shard_size("deepspeed", 4) == 4);
  CHECK(shard_size("fsdp", 8) == 8);
  Config config = with_strategy("fsdp");
  set(config, "layout.fsdp_sharding", "none");
  CHECK(resolve_train(config, 4).layout.shard_size == 1);
  set(config, "layout.fsdp_sharding", "hybrid");
  CHECK(
      resolve(Command::train, config, {.world_size = 8, .local_world_size = 4}).layout.shard_size ==
      4);
  config.layout.shard_size = 2;
  CHECK(resolve_train(config, 8).layout.shard_size == 2);
}

TEST_CASE("A shard size that does not fit is rejected with its value") {
  Config config = with_strategy("fsdp");
  set(config, "layout.fsdp_sharding", "hybrid");
  config.layout.shard_size = 3;
  check_refused(config, Names("--shard-size 3", "4 data-parallel ranks"), 4);
  check_refused(config, Names("--shard-size 3", "--reduction ordered"), 6);
  set(config, "layout.fsdp_sharding", "full");
  config.layout.shard_size = 2;
  check_refused(config, Names("--shard-size 2", "--strategy fsdp", "4 ranks"), 4);
  set(config, "layout.strategy", "ddp");
  check_refused(config, Names("--shard-size 2", "--strategy ddp", "1 rank"), 4);
}

TEST_CASE("Gradients are accumulated as shards if and only if they are sharded") {
  const auto accumulate = [](const Config& config, std::int64_t ranks) {
    return resolve_train(config, ranks).layout.accumulate;
  };
  CHECK(accumulate(with_strategy("fsdp"), 2) == Accumulation::sharded);
  CHECK(accumulate(with_strategy("zero"), 2) == Accumulation::sharded);
  CHECK(accumulate(with_strategy("fsdp"), 1) == Accumulation::local);
  CHECK(accumulate(with_strategy("ddp"), 2) == Accumulation::local);
  Config config = with_strategy("ddp");
  set(config, "layout.accumulate", "sharded");
  check_refused(config, Names("--accumulate sharded", "--strategy ddp"), 2);
  config = with_strategy("zero");
  config.layout.zero_stage = 1;
  CHECK(accumulate(config, 2) == Accumulation::local);
  set(config, "layout.accumulate", "sharded");
  check_refused(config, Names("--accumulate sharded", "--strategy zero"), 2);
  config = with_strategy("fsdp");
  set(config, "layout.accumulate", "local");
  CHECK(accumulate(config, 2) == Accumulation::local);
}

TEST_CASE("Only known wrap policies are accepted") {
  for (const char* wrap : {"block", "none", "size:1", "size:1000000"}) {
    CHECK(WrapPolicy::parse(wrap)->text() == wrap);
  }
  CHECK(WrapPolicy::parse("size:1e6")->text() == "size:1000000");
  for (const char* wrap : {"", "size", "size:", "size:0", "size:-5", "size:1.5", "size:5x",
                           "size:99999999999999999999", "Block", "blocks", " none"}) {
    CHECK_FALSE(WrapPolicy::parse(wrap));
  }
}

TEST_CASE("Heads need not divide the width") {
  Config config;
  config.model.width = 48;
  set(config, "model.heads", "5");
  CHECK_NOTHROW(resolve_train(config));
}

TEST_CASE("Resolving a resolved configuration changes nothing") {
  const Config once = resolve_train({}, 2);
  const Config twice = resolve_train(once, 2);
  CHECK(twice.batch.global == once.batch.global);
  CHECK(twice.machine.threads == once.machine.threads);
  CHECK(twice.machine.backend == once.machine.backend);
  CHECK(twice.layout.dp == once.layout.dp);
}

TEST_CASE("Generation runs as one process, and a trajectory needs its name") {
  CHECK_THROWS_WITH(resolve(Command::generate, {}, {.world_size = 2}),
                    Names("dtrain generate", "2 ranks"));
  Config config;
  config.verify.trajectory = "t.json";
  CHECK_THROWS_WITH(resolve(Command::verify, config, {}), Catch::Contains("--name"));
}

TEST_CASE("Verification uses the given accumulation, by default one microbatch per rank") {
  Config config;
  CHECK(resolve(Command::verify, config, {}).batch.grad_accum == 1);
  config.batch.grad_accum = 4;
  CHECK(resolve(Command::verify, config, {}).batch.grad_accum == 4);
}

}  // namespace
}  // namespace resolve_test
