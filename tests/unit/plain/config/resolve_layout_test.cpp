#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/schema/schema.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/data/batch.h"
#include "support/messages.h"
#include "support/oracles/tree_sum.h"
#include "support/settings.h"

namespace dtrain::config::resolve_layout_test {
namespace {

using namespace dtrain::config;
using dtrain::testing::Names;
using Sizes = std::vector<std::int64_t>;

Config with_strategy(const std::string& strategy) {
  Config config;
  config.model.layers = 12;
  set(config, "layout.strategy", strategy);
  return config;
}

Config resolved(const Config& config, std::int64_t ranks) {
  return resolve(Command::train, config,
                 {.world_size = ranks, .local_world_size = ranks, .usable_cores = 8});
}

void check_refused(const Config& config, std::int64_t ranks, const Names& names) {
  CHECK_THROWS_WITH(resolved(config, ranks), names);
}

// {pp, dp, tp}
Sizes sizes_of(const Config& config, std::int64_t ranks) {
  const LayoutConfig layout = resolved(config, ranks).layout;
  return {layout.pp, layout.dp, layout.tp};
}

Config three_axes(std::int64_t pp, std::int64_t dp, std::int64_t tp) {
  Config config = with_strategy("3d");
  config.layout.pp = pp;
  config.layout.dp = dp;
  config.layout.tp = tp;
  return config;
}

TEST_CASE("A pipeline gets one microbatch per stage unless the batch says otherwise") {
  Config config = with_strategy("pp");
  config.batch.microbatch = 3;
  const BatchConfig given = resolved(config, 4).batch;
  CHECK(given.grad_accum == 4);
  CHECK(given.global == 12);
  config.batch.microbatch = 0;
  CHECK(resolved(config, 4).batch.grad_accum % 4 == 0);
}

TEST_CASE("A one-axis strategy puts all ranks on its axis") {
  CHECK(sizes_of(with_strategy("single"), 1) == Sizes{1, 1, 1});
  for (const char* strategy : {"ddp", "zero", "deepspeed", "fsdp"}) {
    CHECK(sizes_of(with_strategy(strategy), 4) == Sizes{1, 4, 1});
  }
  CHECK(sizes_of(with_strategy("tp"), 4) == Sizes{1, 1, 4});
  CHECK(sizes_of(with_strategy("pp"), 4) == Sizes{4, 1, 1});
  Config same = with_strategy("tp");
  same.layout.tp = 4;
  CHECK(sizes_of(same, 4) == Sizes{1, 1, 4});
}

TEST_CASE("A size that does not match the ranks is rejected with a pointer to 3d") {
  Config config = with_strategy("tp");
  config.layout.tp = 2;
  check_refused(config, 4, Names("--tp 2", "--strategy tp", "4 ranks", "2 ranks"));
  config.layout.tp = 0;
  config.layout.dp = 2;
  check_refused(config, 4, Names("--dp 2", "--strategy tp", "4 ranks", "--strategy 3d"));
  config = with_strategy("ddp");
  config.layout.pp = 2;
  check_refused(config, 4, Names("--pp 2", "--strategy ddp", "4 ranks", "--strategy 3d"));
}

TEST_CASE("Sizes that need several ranks name the launch of that many in a single process") {
  Config config = with_strategy("single");
  config.layout.tp = 2;
  check_refused(config, 1, Names("--tp 2", "--strategy single", "1 rank", "dtrun -n 2"));
  config.layout.pp = 3;
  check_refused(config, 1, Names("--pp 3", "dtrun -n 6"));
  check_refused(three_axes(2, 0, 0), 1, Names("--strategy 3d", "--pp 2", "dtrun -n 2"));
  check_refused(three_axes(2, 0, 2), 1, Names("--pp 2 x --tp 2 = 4", "dtrun -n 4"));
}

TEST_CASE("Compression that saves no bytes is rejected with the bound") {
  const auto compressed = [](const char* scheme, const char* reduce_dtype = "auto") {
    Config config = with_strategy("ddp");
    set(config, "machine.compress", scheme);
    set(config, "machine.reduce_dtype", reduce_dtype);
    return config;
  };
  check_refused(compressed("topk:0.5"), 8,
                Names("--compress topk:0.5", "8 replicas", "2 times", "float32", 0.25));
  check_refused(compressed("topk:0.25"), 8, Names("--compress topk:0.25", "8 replicas", "1 times"));
  CHECK_NOTHROW(resolved(compressed("topk:0.24"), 8));
  CHECK_NOTHROW(resolved(compressed("topk:0.99"), 1));
  check_refused(compressed("topk:0.5", "bfloat16"), 2,
                Names("--compress topk:0.5", "2 replicas", "1 times", "bfloat16"));
  check_refused(compressed("bf16", "bfloat16"), 2, Names("--compress bf16", "bfloat16"));
  check_refused(compressed("fp16", "bfloat16"), 2, Names("--compress fp16", "bfloat16"));
  CHECK_NOTHROW(resolved(compressed("bf16"), 2));
  // Shards travel between replicas in float32.
  Config hybrid = compressed("bf16", "bfloat16");
  set(hybrid, "layout.strategy", "fsdp");
  set(hybrid, "layout.fsdp_sharding", "hybrid");
  hybrid.layout.shard_size = 2;
  CHECK_NOTHROW(resolved(hybrid, 4));
  set(hybrid, "machine.compress", "topk:0.5");
  CHECK_NOTHROW(resolved(hybrid, 4));
  check_refused(hybrid, 8, Names("--compress topk:0.5", "4 replicas", "1 times"));
}

TEST_CASE("With 3d the third size is derived from the other two") {
  CHECK(sizes_of(three_axes(2, 2, 2), 8) == Sizes{2, 2, 2});
  CHECK(sizes_of(three_axes(0, 2, 2), 8) == Sizes{2, 2, 2});
  CHECK(sizes_of(three_axes(2, 0, 2), 12) == Sizes{2, 3, 2});
  CHECK(sizes_of(three_axes(2, 4, 0), 8) == Sizes{2, 4, 1});
  CHECK(sizes_of(three_axes(1, 1, 1), 1) == Sizes{1, 1, 1});
  check_refused(three_axes(2, 2, 3), 8, Names("--pp 2 x --dp 2 x --tp 3 = 12", "8 ranks"));
  check_refused(three_axes(0, 3, 1), 8, Names("--dp 3 x --tp 1 = 3", "8 ranks"));
  check_refused(three_axes(0, 0, 2), 8, Names("--strategy 3d", "--pp, --dp and --tp", "--tp 2"));
  check_refused(three_axes(0, 0, 0), 8, Names("--strategy 3d", "--pp, --dp and --tp", "none"));
}

TEST_CASE("The batch and the shards count only data-parallel ranks") {
  Config config = three_axes(1, 2, 4);
  set(config, "layout.data_axis", "fsdp");
  config.batch.microbatch = 3;
  const Config found = resolved(config, 8);
  CHECK(found.batch.global == 6);
  CHECK(found.layout.shard_size == 2);
  CHECK(found.layout.accumulate == Accumulation::sharded);
  set(config, "layout.data_axis", "ddp");
  CHECK(resolved(config, 8).layout.shard_size == 1);
  // Hybrid: of the 4 ranks of a node, 2 share the arithmetic, so 2 see different data.
  config = three_axes(1, 4, 2);
  set(config, "layout.data_axis", "fsdp");
  set(config, "layout.fsdp_sharding", "hybrid");
  CHECK(resolve(Command::train, config, {.world_size = 8, .num_nodes = 2, .local_world_size = 4})
            .layout.shard_size == 2);
  // Nodes of 2 and 4 ranks.
  config = with_strategy("fsdp");
  set(config, "layout.fsdp_sharding", "hybrid");
  CHECK_THROWS_WITH(
      resolve(Command::train, config, {.world_size = 6, .num_nodes = 2, .local_world_size = 4}),
      Names("--fsdp-sharding hybrid", 4, 6, "--shard-size"));
}

TEST_CASE("A pipeline gets one microbatch per stage unless the batch requires more") {
  Config config = with_strategy("pp");
  CHECK(resolved(config, 4).batch.grad_accum == kDefaultGlobalBatch / kDefaultMicrobatch);
  config.batch.global = 16;
  CHECK(resolved(config, 4).batch.grad_accum == 4);
  CHECK(resolved(config, 4).batch.microbatch == 4);
  config.batch.microbatch = 2;
  CHECK(resolved(config, 4).batch.grad_accum == 8);
  config.batch = {.grad_accum = 3};
  CHECK(resolved(config, 4).batch.grad_accum == 3);
  config.batch = {.global = 6};
  check_refused(config, 4, Names("--global-batch 6", "--pp 4 x 1", "--microbatch"));
}

TEST_CASE("An impossible pipeline is rejected with both settings") {
  Config config = with_strategy("pp");
  set(config, "layout.schedule_pp", "interleaved:2");
  config.batch.grad_accum = 6;
  check_refused(config, 4,
                Names("--schedule-pp interleaved:2", "--pp 4", "--grad-accum", 6, "4 or 8"));
  config.batch.grad_accum = 8;
  config.model.layers = 7;
  check_refused(config, 4, Names("--pp 4", "--schedule-pp interleaved:2", "8 parts", "--layers 7"));
  set(config, "layout.schedule_pp", "1f1b");
  set(config, "layout.pp_split", "3,4");
  check_refused(config, 4, Names("--pp-split 3,4", "2 parts", "--pp 4"));
  set(config, "layout.pp_split", "1,1,1,1");
  check_refused(config, 4, Names("--pp-split 1,1,1,1", "4 layers", "--layers", 7));
  set(config, "layout.pp_split", "3,0,3,1");
  check_refused(config, 4, Names("--pp-split 3,0,3,1", "part 1"));
  set(config, "layout.pp_split", "1,2,3,1");
  CHECK_NOTHROW(resolved(config, 4));
}

TEST_CASE("Ranks that are threads count like launched ones") {
  Config config = with_strategy("dp");
  const Config found = resolved(config, 1);
  CHECK(found.layout.local_ranks == 2);
  CHECK(found.layout.dp == 2);
  CHECK(found.machine.backend == Backend::local);
  CHECK(found.machine.threads == 4);
  CHECK(found.batch.global == kDefaultGlobalBatch);
  config.layout.local_ranks = 4;
  CHECK(sizes_of(config, 1) == Sizes{1, 4, 1});
  set(config, "layout.strategy", "mp");
  CHECK(sizes_of(config, 1) == Sizes{4, 1, 1});
  config.layout.local_ranks = 0;
  set(config, "layout.devices", "cpu,cpu,cpu");
  CHECK(sizes_of(config, 1) == Sizes{3, 1, 1});
  CHECK(sizes_of(resolved(config, 1), 1) == Sizes{3, 1, 1});
  config.layout.pp = 2;
  check_refused(config, 1, Names("--pp 2", "--strategy mp", "3 ranks", "--local-ranks 2"));
}

TEST_CASE("Ranks that are threads need a single process, the local backend and distinct devices") {
  Config config = with_strategy("dp");
  check_refused(config, 2, Names("--strategy dp", 2, "--strategy ddp"));
  check_refused(with_strategy("mp"), 2, Names("--strategy mp", 2, "--strategy pp"));
  set(config, "machine.backend", "shm");
  check_refused(config, 1, Names("--backend shm", "--strategy dp"));
  Config processes = with_strategy("ddp");
  set(processes, "machine.backend", "local");
  check_refused(processes, 2, Names("--backend local", "--strategy ddp"));
  set(config, "machine.backend", "auto");
  set(config, "layout.devices", "cpu,cpu");
  config.layout.local_ranks = 3;
  check_refused(config, 1, Names("--devices cpu,cpu", "2 devices", "--local-ranks", 3));
  set(config, "layout.devices", "0,1,0");
  check_refused(config, 1, Names("--devices 0,1,0", "local ranks", "GPU 0"));
  set(config, "layout.devices", "cpu,0,1");
  check_refused(config, 1, Names("--devices cpu,0,1", "GPU 0", "libdtrain_cuda.so"));
}

// A sum as text, with parentheses that show the order of additions.
std::string sum_of(std::vector<std::string> terms) {
  testing::add_in_tree_order(
      static_cast<std::int64_t>(terms.size()), [&](std::int64_t into, std::int64_t from) {
        std::string& sum = terms[static_cast<std::size_t>(into)];
        sum = fmt::format("({}+{})", sum, terms[static_cast<std::size_t>(from)]);
      });
  return terms.front();
}

// The sum as the layout computes it: its microbatch assignment and order of additions.
std::string sum_under(const LayoutConfig& layout, std::int64_t grad_accum) {
  const bool sharded = layout.accumulate == Accumulation::sharded;
  const auto term = [&](std::int64_t rank, std::int64_t index) {
    const data::MicrobatchAssignment deal{
        .rank = rank, .grad_accum = grad_accum, .interleave = sharded ? layout.shard_size : 1};
    return std::to_string(deal.number_of(data::MicrobatchId(index)));
  };
  const std::int64_t inner = sharded ? layout.shard_size : grad_accum;
  const std::int64_t outer = sharded ? grad_accum : layout.shard_size;
  std::vector<std::string> copies;
  for (std::int64_t first = 0; first < layout.dp; first += layout.shard_size) {
    std::vector<std::string> sums;
    for (std::int64_t i = 0; i < outer; ++i) {
      std::vector<std::string> terms;
      for (std::int64_t j = 0; j < inner; ++j) {
        terms.push_back(sharded ? term(first + j, i) : term(first + i, j));
      }
      sums.push_back(sum_of(terms));
    }
    copies.push_back(sum_of(sums));
  }
  return sum_of(copies);
}

std::string sum_of_one_rank(std::int64_t count) {
  std::vector<std::string> terms;
  for (std::int64_t m = 0; m < count; ++m) terms.push_back(std::to_string(m));
  return sum_of(terms);
}

TEST_CASE("A layout matches the single-rank order if and only if its additions associate alike") {
  std::int64_t kept = 0;
  std::int64_t cut = 0;
  const auto check = [&](const LayoutConfig& layout, std::int64_t grad_accum) {
    INFO(layout.dp << " ranks, shards of " << layout.shard_size << ", " << grad_accum << " "
                   << layout.accumulate);
    const bool keeps = matches_single_rank_order(layout, grad_accum);
    CHECK(keeps == (sum_under(layout, grad_accum) == sum_of_one_rank(layout.dp * grad_accum)));
    ++(keeps ? kept : cut);
  };
  for (std::int64_t dp = 1; dp <= 8; ++dp) {
    for (std::int64_t shard_size = 1; shard_size <= dp; ++shard_size) {
      if (dp % shard_size != 0) continue;
      LayoutConfig layout;
      layout.dp = dp;
      layout.shard_size = shard_size;
      for (const Accumulation accumulate : {Accumulation::local, Accumulation::sharded}) {
        layout.accumulate = accumulate;
        for (std::int64_t grad_accum = 1; grad_accum <= 8; ++grad_accum) check(layout, grad_accum);
      }
    }
  }
  CHECK(kept > 100);
  CHECK(cut > 50);
}

TEST_CASE("A mesh shape has one number per axis, 1 by default") {
  const MeshShape shape{{Axis::tp, 4}, {Axis::pp, 3}};
  CHECK(shape[Axis::dp] == 1);
  CHECK(shape.num_ranks() == 12);
  CHECK(shape.stride(Axis::tp) == 1);
  CHECK(shape.stride(Axis::dp) == 4);
  CHECK(shape.stride(Axis::pp) == 4);
  CHECK(shape.text() == "pp 3, dp 1, tp 4");
  CHECK(shape != MeshShape{});
}

TEST_CASE("Each axis has a size setting with its name") {
  for (const Axis axis : kAxes) {
    LayoutConfig layout;
    size_of(layout, axis) = 7;
    CHECK(mesh_of(layout)[axis] == 7);
    const Setting* setting = find_key(fmt::format("layout.{}", name_of(axis)));
    REQUIRE(setting != nullptr);
    Config config;
    config.layout = layout;
    CHECK(value_text(*setting, config) == "7");
  }
}

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kNeurons = 8192;

std::int64_t chunk_for(std::int64_t seq_len, Dtype dtype = Dtype::bfloat16) {
  MachineConfig machine;
  machine.param_dtype = dtype;
  const DeviceRates rates = device_rates(machine);
  return bdh::fastest_chunk(
      kWidth, kNeurons,
      {.seq_len = seq_len, .rates = &rates, .value_bytes = dtype == Dtype::bfloat16 ? 2 : 4});
}

TEST_CASE("On a device short sequences use full attention, long ones large chunks") {
  CHECK(chunk_for(512) == 0);
  CHECK(chunk_for(2048) == 0);
  CHECK(chunk_for(8192) == 1024);
  CHECK(chunk_for(65536) == 1024);
}

TEST_CASE("Slower matmuls make smaller chunks optimal") {
  CHECK(chunk_for(8192, Dtype::float32) < chunk_for(8192, Dtype::bfloat16));
  CHECK(chunk_for(8192, Dtype::float32) > 0);
}

TEST_CASE("Only the ratios of a device's rates matter") {
  MachineConfig machine;
  machine.param_dtype = Dtype::bfloat16;
  DeviceRates rates = device_rates(machine);
  const auto chunk = [&] {
    return bdh::fastest_chunk(kWidth, kNeurons,
                              {.seq_len = 8192, .rates = &rates, .value_bytes = 2});
  };
  const std::int64_t given = chunk();
  rates = {rates.matmul_flops / 3, rates.wide_matmul_flops / 3, rates.memory_bandwidth / 3};
  CHECK(chunk() == given);
  rates.memory_bandwidth *= 16;
  CHECK(chunk() < given);
}

}  // namespace
}  // namespace dtrain::config::resolve_layout_test
