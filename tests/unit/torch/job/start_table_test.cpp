#include "dtrain/job/start_table.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <functional>
#include <sstream>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/gpt2/settings.h"
#include "dtrain/config/llama/settings.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/tensor_memory.h"
#include "support/engine_run.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/values.h"

namespace dtrain::job::start_table_test {
namespace {

using mesh::Axis;
config::Config mini(std::int64_t dp, std::int64_t grad_accum) {
  config::Config config = testing::tiny_config();
  config.model = {
      .layers = 4, .width = 64, .heads = 4, .family = config::bdh::Settings{.neurons = 512}};
  config.data.seq_len = 128;
  return testing::laid_out(config, dp, grad_accum);
}

data::Split split_of(const config::Config& config) {
  return data::open_split({.train = config.data.train,
                           .validation = "",
                           .val_fraction = 0.25,
                           .seq_len = config.data.seq_len});
}

struct Measured {
  std::int64_t predicted = 0;
  std::int64_t peak = 0;  // over the first three steps
};

// Measures in separate processes, whose peak no other test has raised. The argument has one request
// per line, and the text one line "PREDICTED MEASURED" in bytes for each.
const testing::RankProgram kMeasure("measure", [](comm::World& world, const std::string& requests) {
  metrics::install_counting_allocator();
  std::string found;
  std::istringstream lines(requests);
  for (std::string request; std::getline(lines, request);) {
    testing::EngineRun run(config::from_request(request).config, world);
    metrics::restart_peak();
    run.steps(3);
    found += fmt::format("{} {}\n", run.job().plan().memory.total(), metrics::memory_use().peak);
  }
  return found;
});

// Measurements of one rank for each run. All runs have the same number of ranks.
std::vector<Measured> measure(std::vector<config::Config> configs, std::size_t rank = 0,
                              const std::string& backend = "gloo") {
  std::string requests;
  for (config::Config& config : configs) {
    set(config, "machine.backend", backend);
    requests += config::to_request({config::Command::train, testing::with_dtypes(config)}) + "\n";
  }
  const auto outcome =
      testing::on_processes("measure", {.size = testing::num_ranks(configs.front()),
                                        .argument = requests,
                                        .backend = backend,
                                        .limit = std::chrono::minutes(4)})[rank];
  INFO(outcome.standard_error << outcome.text);
  REQUIRE(outcome.status == 0);
  std::vector<Measured> all(configs.size());
  std::istringstream numbers(outcome.text);
  for (Measured& found : all) REQUIRE(numbers >> found.predicted >> found.peak);
  return all;
}

// tolerance: allowed relative error of the prediction.
void check_prediction(const Measured& found, double tolerance = 0.05) {
  const double ratio = static_cast<double>(found.predicted) / static_cast<double>(found.peak);
  INFO("predicted " << metrics::format_bytes(found.predicted) << ", measured "
                    << metrics::format_bytes(found.peak));
  CHECK(ratio > 1 - tolerance);
  CHECK(ratio < 1 + tolerance);
}

struct Case {
  config::Config config;
  double tolerance = 0.05;
};

void check_within(const std::vector<Case>& cases, const std::string& backend = "gloo") {
  std::vector<config::Config> configs;
  for (const Case& one : cases) configs.push_back(one.config);
  const std::vector<Measured> measured = measure(configs, 0, backend);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const config::Config& config = cases[i].config;
    const Measured& found = measured[i];
    INFO(backend << " " << config.machine.dtype << " " << config.machine.recompute << " dp "
                 << config.layout.dp << " tp " << config.layout.tp << " pp " << config.layout.pp
                 << " accum " << config.batch.grad_accum << " tied "
                 << config::bdh::settings_of(config.model).tie_layers << " dropout "
                 << config.model.dropout);
    check_prediction(found, cases[i].tolerance);
  }
}

// Four samples at once; activations still dominate.
config::Config four_samples() {
  config::Config config = mini(1, 1);
  config.batch.global = config.batch.microbatch = 4;
  return config;
}

std::vector<Case> cases_where_levels_run_again() {
  std::vector<Case> cases;
  config::Config config = four_samples();
  for (const char* recompute : {"none", "level", "every:2"}) {
    set(config, "machine.recompute", recompute);
    for (const auto& [dropout, ties] : {std::pair{0.0, true}, {0.1, true}, {0.1, false}}) {
      config.model.dropout = dropout;
      config::bdh::settings_of(config.model).tie_layers = ties;
      cases.push_back({config});
    }
  }
  config = four_samples();
  set(config, "model.neurons", "32");
  config.data.seq_len = 256;
  for (const char* recompute : {"none", "level"}) {
    set(config, "machine.recompute", recompute);
    cases.push_back({config});
  }
  return cases;
}

// Weights outweigh activations.
config::Config heavy(std::int64_t samples) {
  config::Config config = mini(1, 1);
  config.model = {
      .layers = 2, .width = 128, .heads = 4, .family = config::bdh::Settings{.neurons = 4096}};
  config.data.seq_len = 2;
  config.batch.global = config.batch.microbatch = samples;
  return config;
}

TEST_CASE("The predicted memory of a rank is within a twentieth of the measured peak") {
  SECTION("with recomputation, untied levels, long sequences and few neurons") {
    check_within(cases_where_levels_run_again());
  }
  SECTION("in every dtype, with accumulation, with weights that outweigh activations") {
    std::vector<Case> cases{{mini(1, 8)}, {heavy(1), 0.02}};
    config::Config config = mini(1, 1);
    config.data.seq_len = 32;  // 16 bits are slow on processors without instructions for them
    for (const char* dtype : {"bfloat16", "float16", "float64"}) {
      set(config, "machine.dtype", dtype);
      cases.push_back({config});
    }
    check_within(cases);
  }
  SECTION("with shards on two ranks, with gradients reduced in another dtype") {
    config::Config reduced = heavy(2);
    set(reduced, "machine.reduce_dtype", "bfloat16");
    std::vector<Case> cases{{testing::laid_out(reduced, 2, 1), 0.05}};
    config::Config config = four_samples();
    for (const bool ties : {true, false}) {
      for (const char* recompute : {"none", "every:2"}) {
        config::bdh::settings_of(config.model).tie_layers = ties;
        set(config, "machine.recompute", recompute);
        cases.push_back({testing::sharded(config, 2, 1, "fsdp:full")});
      }
    }
    check_within(cases);
    // How much is in flight depends on the machine; the prediction is an upper bound.
    config::bdh::settings_of(reduced.model).tie_layers = false;
    const Measured found = measure({testing::sharded(reduced, 2, 1, "fsdp:full")}).front();
    CHECK(found.predicted > found.peak - (1 << 20));
    CHECK(found.predicted < found.peak + found.peak / 4);
  }
}

// A model so small that communication buffers matter: groups of all axes count equally.
config::Config light() {
  config::Config config = mini(1, 1);
  set(config, "model.neurons", "64");
  config.data.seq_len = 32;
  return config;
}

TEST_CASE("Communication buffers of every axis are predicted") {
  const std::string backend = GENERATE("gloo", "shm");
  config::Config reduced = light();
  set(reduced, "machine.reduce_dtype", "bfloat16");
  check_within({{testing::laid_out(light(), 2, 1)},
                {testing::laid_out(reduced, 2, 1)},
                {testing::meshed(light(), {{Axis::tp, 2}}, 1)},
                {testing::meshed(light(), {{Axis::pp, 2}}, 2)}},
               backend);
  config::Config hybrid = testing::sharded(light(), 4, 1, "hybrid:2");
  config::Config mesh = testing::meshed(light(), {{Axis::pp, 2}, {Axis::tp, 2}}, 2);
  check_within({{hybrid}, {mesh}}, backend);
}

// On the first stage of two, with eight microbatches.
Measured measure_schedule(const std::string& schedule) {
  config::Config config = mini(1, 1);
  set(config, "layout.schedule_pp", schedule);
  return measure({testing::meshed(config, {{Axis::pp, 2}}, 8)}).front();
}

TEST_CASE("1f1b keeps activations of as many microbatches as stages, gpipe of all") {
  const Measured all = measure_schedule("gpipe");
  const Measured few = measure_schedule("1f1b");
  for (const Measured& found : {all, few}) check_prediction(found);
  // Two levels of one sample: 4.5 tensors (T, n) each.
  const std::int64_t microbatch = 2 * 9 * 128 * 4 * 512 * 4 / 2;
  CHECK(all.peak - few.peak > 6 * microbatch * 9 / 10);
}

// If little besides inputs is kept, inputs from another stage matter.
TEST_CASE("The memory of a later stage with recomputed levels is predicted") {
  config::Config config = mini(1, 1);
  set(config, "model.neurons", "32");
  config.batch.global = 128;
  set(config, "layout.schedule_pp", "gpipe");
  set(config, "machine.recompute", "every:2");
  config = testing::meshed(config, {{Axis::pp, 2}}, 64);
  const Measured found = measure({config}, 1).front();
  check_prediction(found);
}

TEST_CASE("Parameters, gradients and moments are predicted to the byte") {
  testing::on_threads(2, [&](comm::World& world) {
    testing::EngineRun run(mini(2, 4), world);
    const parallel::MemoryPlan plan = run.job().plan().memory;
    const std::int64_t arena = 425'984 * 4;  // no padding: all sizes are multiples of 64
    testing::expect(plan.parameters == arena, "parameters");
    testing::expect(plan.gradients == 3 * arena, "gradients: one and two levels of the tree");
    testing::expect(plan.optimizer == 2 * arena, "optimizer");
  });
}

TEST_CASE("Offloaded state takes no memory, but its checkpoint copy does") {
  testing::on_threads(1, [&](comm::World& world) {
    config::Config config = mini(1, 1);
    set(config, "checkpoint.every", "1");
    set(config, "machine.offload", "disk:/tmp");
    testing::EngineRun run(config, world);
    const parallel::MemoryPlan& plan = run.job().plan().memory;
    const std::int64_t arena = 425'984 * 4;
    testing::expect(plan.parameters == 0, "parameters");
    testing::expect(plan.optimizer == 0, "optimizer");
    testing::expect(plan.checkpoint == 3 * arena, "weights and two moments");
  });
}

const CpuTypes kCpus{.text = "AVX2/AMD:avx2"};

TEST_CASE("The reproducibility class names exactly what equal bits depend on") {
  const config::Config config = testing::with_dtypes(mini(1, 2));
  const std::string text = reproducibility_class(config, kCpus);
  CHECK(text ==
        "microbatch=4 param-dtype=float32 buffer-dtype=float32 threads=1 kernels=plain "
        "cpu=AVX2/AMD:avx2");
  CHECK(reproducibility_class(testing::with_dtypes(mini(2, 1)), kCpus) == text);
  CHECK(reproducibility_class(testing::with_dtypes(mini(1, 1)), kCpus) != text);
  config::Config fast = config;
  set(fast, "machine.reduction", "fast");
  CHECK(reproducibility_class(fast, kCpus).starts_with("none"));
  config::Config more_threads = config;
  more_threads.machine.threads = 2;
  CHECK(reproducibility_class(more_threads, kCpus) != text);
  CHECK(reproducibility_class(config, {.text = "AVX512/AMD:avx512"}) != text);
  CHECK(reproducibility_class(config, {.text = "rank 1 has A", .are_mixed = true})
            .starts_with("none"));
}

TEST_CASE(
    "Bits of fused kernels depend on threads in transformers, whose products LibTorch computes") {
  config::Config config = testing::with_dtypes(mini(1, 2));
  config.machine.kernels = config::Kernels::fused;
  const auto names_threads = [&] {
    return reproducibility_class(config, kCpus).find("threads=") != std::string::npos;
  };
  CHECK_FALSE(names_threads());
  config.model.name = "llama";
  config.model.family = config::llama::Settings{};
  CHECK(names_threads());
  config.model.name = "gpt2";
  config.model.family = config::gpt2::Settings{};
  CHECK(names_threads());
}

using Change = std::function<void(config::Config&)>;

std::string class_of(std::int64_t dp, std::int64_t grad_accum, const std::string& what,
                     const Change& change = {}) {
  config::Config config = testing::tiny_config();
  config.batch.global = 24;
  if (change) change(config);
  return reproducibility_class(testing::sharded(config, dp, grad_accum, what), kCpus);
}

TEST_CASE("The reproducibility class follows the order in which gradients are added") {
  const std::string single = class_of(1, 6, "fsdp:none");
  CHECK(class_of(2, 3, "fsdp:full+local") == single);
  CHECK(class_of(2, 3, "fsdp:none") == single);
  CHECK(class_of(6, 1, "fsdp:full") == single);
  // Two ranks are added first, and then three of those.
  CHECK(class_of(2, 3, "fsdp:full") != single);
  CHECK(class_of(2, 3, "zero:2") != single);
  CHECK(class_of(6, 1, "hybrid:2") != single);
  CHECK(class_of(3, 2, "fsdp:none") != single);
}

TEST_CASE("The reproducibility class names the dtypes that change bits, and only those") {
  const auto dtypes = [](const char* dtype, const char* parameters) -> Change {
    return [=](config::Config& config) {
      set(config, "machine.dtype", dtype);
      set(config, "machine.param_dtype", parameters);
    };
  };
  const std::string single = class_of(1, 6, "fsdp:none");
  CHECK(class_of(1, 6, "fsdp:none", dtypes("bfloat16", "float32")) == single);
  const std::string low = class_of(1, 6, "fsdp:none", dtypes("float32", "bfloat16"));
  CHECK(low != single);
  CHECK(low == class_of(1, 6, "fsdp:none", dtypes("bfloat16", "auto")));
  const Change buffers = [](config::Config& config) {
    set(config, "machine.buffer_dtype", "bfloat16");
  };
  CHECK(class_of(1, 6, "fsdp:none", buffers) != single);
  const Change reduces = [](config::Config& config) {
    set(config, "machine.reduce_dtype", "bfloat16");
  };
  CHECK(class_of(1, 6, "fsdp:none", reduces) == single);  // a single rank sends nothing
  CHECK(class_of(2, 3, "fsdp:none", reduces) != single);
  CHECK(class_of(6, 1, "fsdp:none", reduces) != class_of(2, 3, "fsdp:none", reduces));
}

/// Returns the table row that begins with this word; empty if there is none.
std::string row_of(const std::string& table, const std::string& word) {
  std::istringstream rows(table);
  for (std::string row; std::getline(rows, row);) {
    if (row.starts_with(word + " ")) return row;
  }
  return {};
}

StartFacts facts_of(testing::EngineRun& run, const data::Split& split) {
  Job& job = run.job();
  return {run.config(), job.world(), job.whole_model(), job.plan(), job.cpus(), split};
}

TEST_CASE("The start table and the start event describe the run") {
  testing::on_threads(2, [&](comm::World& world) {
    const config::Config config = mini(2, 1);
    testing::EngineRun run(config, world);
    const data::Split split = split_of(config);
    const std::string table = start_table(facts_of(run, split));
    for (const char* part :
         {"425,984", "pp 1 x dp 2 x tp 1, backend local, device cpu", " x 2 data ranks\n",
          "float32: ", "383 training samples", "\nmemory "}) {
      testing::expect(table.find(part) != std::string::npos, std::string(part) + " in\n" + table);
    }
    const auto fields = start_fields(facts_of(run, split));
    testing::expect(fields.at("world_size") == 2, "world_size");
    testing::expect(fields.at("mesh").dump() == R"({"pp":1,"dp":2,"tp":1})", "mesh");
    testing::expect(fields.at("train_samples") == 383, "train_samples");
    testing::expect(fields.at("validation_samples") == 127, "validation_samples");
  });
}

TEST_CASE("The start shows each rank's coordinate and groups") {
  CHECK(mesh_lines(mesh::DeviceMesh({})).empty());
  CHECK(mesh_lines(mesh::DeviceMesh({{Axis::dp, 1000}})).empty());
  CHECK(mesh_lines(mesh::DeviceMesh({{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}})) ==
        "rank (pp,dp,tp) 0 (0,0,0), 1 (0,0,1), 2 (0,1,0), 3 (0,1,1), 4 (1,0,0), 5 (1,0,1), 6 "
        "(1,1,0), 7 (1,1,1)\n"
        "tp groups       0 1 | 2 3 | 4 5 | 6 7\n"
        "dp groups       0 2 | 1 3 | 4 6 | 5 7\n"
        "pp groups       0 4 | 1 5 | 2 6 | 3 7\n");
  CHECK(mesh_lines(mesh::DeviceMesh({{Axis::dp, 500}, {Axis::tp, 2}})) ==
        "rank (pp,dp,tp) 0 (0,0,0), 1 (0,0,1), 2 (0,1,0), 3 (0,1,1), 4 (0,2,0), 5 (0,2,1), 6 "
        "(0,3,0), ... 999 (0,499,1)\n"
        "tp groups       0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11 | 12 13 | ... 998 999\n"
        "dp groups       0 2 4 6 8 10 12 ... 998 | 1 3 5 7 9 11 13 ... 999\n");
}

TEST_CASE("The start details show what a sharded step gathers and reduces") {
  config::Config config = mini(2, 1);
  config::bdh::settings_of(config.model).tie_layers = false;  // units: embedding, four levels, head
  testing::on_threads(2, [&](comm::World& world) {
    testing::EngineRun run(testing::sharded(config, 2, 1, "fsdp:full"), world);
    const data::Split split = split_of(config);
    const std::string table = start_details(facts_of(run, split));
    // Forward gathers all six and keeps the head's; backward gathers the other five. A level has
    // 3 x 64 x 2048 parameters, embedding and head 16384; half of each is sent.
    const std::int64_t levels = 4 * 3 * 64 * 2048;
    const std::int64_t gather_bytes = (2 * levels + 3 * 16384) * 4 / 2;
    const std::int64_t reduction_bytes = (levels + 2 * 16384) * 4 / 2;
    const std::string row = row_of(table, "gathered shards");
    for (const std::string& part :
         {std::string("6 units of 2 shards"),
          fmt::format("11 gathers ({} sent)", metrics::format_bytes(gather_bytes)),
          fmt::format("6 reductions ({} sent)", metrics::format_bytes(reduction_bytes)),
          std::string("at most 2")}) {
      testing::expect(testing::holds(row, part), part + " in\n" + table);
    }
    const auto units = start_fields(facts_of(run, split)).at("units_per_step");
    testing::expect(units.dump() == fmt::format(R"({{"units":6,"shards":2,"gathers":11,)"
                                                R"("gather_bytes":{},"reductions":6,)"
                                                R"("reduction_bytes":{},"max_gathered":2}})",
                                                gather_bytes, reduction_bytes),
                    units.dump());
    testing::EngineRun whole(mini(2, 1), world);
    testing::expect(row_of(start_details(facts_of(whole, split)), "gathered shards").empty(),
                    "no such row");
    testing::expect(!start_fields(facts_of(whole, split)).contains("units_per_step"), "nor field");
  });
}

}  // namespace
}  // namespace dtrain::job::start_table_test
