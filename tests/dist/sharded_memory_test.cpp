// Compares the memory of ranks under each sharding with the formulas of docs/guide/sharding.md.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/job/start_table.h"
#include "dtrain/metrics/tensor_memory.h"
#include "support/engine_run.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/values.h"

namespace dtrain::testing::sharded_memory_test {
namespace {

// 6.3 million parameters in eight levels of its own matrices each, and next to no activations.
config::Config wide(std::int64_t ranks, const std::string& what) {
  config::Config config = tiny_config();
  config.model = {.layers = 8,
                  .width = 64,
                  .heads = 4,
                  .family = config::bdh::Settings{.neurons = 1024, .tie_layers = false}};
  config.data.seq_len = 4;
  config.batch.global = ranks;
  return what == "ddp" ? laid_out(config, ranks, 1) : sharded(config, ranks, 1, what);
}

// This process's share of resident memory, in bytes, without files: the number of processes that
// share a library changes.
std::int64_t proportional_set_size() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t total = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kibibytes = 0;
    words >> name >> kibibytes;
    if (name == "Pss_Anon:" || name == "Pss_Shmem:") total += kibibytes * 1024;
  }
  expect(total > 0, "a kernel that tells Pss_Anon and Pss_Shmem");
  return total;
}

// All in bytes.
struct Measured {
  std::int64_t held = 0;        // tensors and segments between two steps
  std::int64_t peak = 0;        // of the same
  std::int64_t resident = 0;    // growth of the proportional set size
  std::int64_t temporary = 0;   // activations and work, as predicted
  std::int64_t parameters = 0;  // of the whole model, in float32
  std::int64_t largest_unit = 0;

  static Measured from(const std::string& text) {
    Measured m;
    std::istringstream(text) >> m.held >> m.peak >> m.resident >> m.temporary >> m.parameters >>
        m.largest_unit;
    return m;
  }
};

std::string measure(comm::World& world, const std::string& request) {
  metrics::install_counting_allocator();
  const config::Config config = config::from_request(request).config;
  {
    config::Config warm = config;  // what LibTorch and the backend take once
    set(warm, "model.neurons", "16");
    EngineRun run(warm, world);
    run.steps(1);
    (void)run.job().engine().parameter_norm();
  }
  const std::int64_t tensors = metrics::memory_use().current;
  const std::int64_t resident = proportional_set_size();
  EngineRun run(config, world);
  run.steps(3);
  (void)run.job().engine().parameter_norm();  // gathers after the update have arrived
  run.job().groups().world().barrier();       // all ranks stand between steps
  const std::int64_t growth = proportional_set_size() - resident;
  run.job().groups().world().barrier();
  const param::ArenaLayout& layout = run.job().plan().units;
  std::int64_t largest = 0;
  for (const param::UnitId unit : layout.units()) {
    largest = std::max(largest, 4 * layout.unit_range(unit).size());
  }
  const parallel::MemoryPlan plan = run.job().plan().memory;
  return fmt::format("{} {} {} {} {} {}", metrics::memory_use().current - tensors,
                     metrics::memory_use().peak - tensors, growth, plan.activations + plan.work,
                     4 * run.job().plan().model->num_elements(), largest);
}

const RankProgram kMeasure("measure shards", measure);

constexpr double kMebibyte = 1 << 20;

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / kMebibyte; }

std::vector<Measured> measure_on(std::int64_t ranks, const std::string& backend,
                                 const std::string& what) {
  const config::Config config = wide(ranks, what);
  const auto outcomes = on_processes(
      "measure shards", {.size = ranks,
                         .argument = config::to_request({config::Command::train, config}),
                         .backend = backend});
  std::vector<Measured> all;
  for (const RankOutcome& outcome : outcomes) {
    INFO(outcome.text << outcome.standard_error);
    REQUIRE(outcome.status == 0);
    all.push_back(Measured::from(outcome.text));
  }
  return all;
}

struct Formula {
  std::string what;
  double whole = 0;    // arrays of all parameters on every rank
  double sharded = 0;  // arrays of which a rank has its share
};

TEST_CASE("A rank's memory between steps is at most a tenth above the formula") {
  const std::string backend = GENERATE("gloo", "shm");
  const Formula formula = GENERATE(Formula{"ddp", 4, 0}, Formula{"zero:1", 2, 2},
                                   Formula{"zero:2", 1, 3}, Formula{"fsdp:full", 0, 4});
  // Every formula on 2 and on 4 ranks, over one backend each: any two of the three meet.
  const bool is_even = formula.what == "ddp" || formula.what == "zero:2";
  const std::int64_t ranks = is_even == (backend == "shm") ? 2 : 4;
  INFO(formula.what << " on " << ranks << " processes over " << backend);
  double expected = 0;
  double resident = 0;
  double freed = 0;  // units that were there within a step
  for (const Measured& found : measure_on(ranks, backend, formula.what)) {
    expected = (formula.whole + formula.sharded / static_cast<double>(ranks)) *
               static_cast<double>(found.parameters);
    CHECK(static_cast<double>(found.held) < 1.1 * expected);
    CHECK(static_cast<double>(found.held) > 0.99 * expected);  // else something is not counted
    resident += static_cast<double>(found.resident) / static_cast<double>(ranks);
    freed = std::max(freed, static_cast<double>(found.peak - found.held));
  }
  WARN(formula.what << " x " << ranks << " " << backend << ": formula " << expected / kMebibyte
                    << " MiB, resident " << resident / kMebibyte);
  // Besides, a process has buffers of its own, and keeps the pages of freed units for the next
  // step: over shm no more than were in use at once.
  if (backend == "shm") CHECK(resident < 1.1 * expected + freed + 8 * kMebibyte);
}

TEST_CASE("The peak of a fully sharded step holds two units, not the model") {
  const std::string backend = GENERATE("gloo", "shm");
  for (const Measured& found : measure_on(2, backend, "fsdp:full")) {
    const std::int64_t shards = 4 * found.parameters / 2;
    const std::int64_t two_units = 2 * 2 * found.largest_unit;  // parameters and gradients
    INFO(backend << ": peak " << mib(found.peak) << " MiB, shards " << mib(shards) << ", two units "
                 << mib(two_units) << ", activations " << mib(found.temporary));
    CHECK(static_cast<double>(found.peak) <
          1.1 * static_cast<double>(shards + two_units + found.temporary));
    CHECK(found.peak > shards + found.largest_unit);
    CHECK(found.temporary < shards / 4);  // else the bound says little
  }
}

}  // namespace
}  // namespace dtrain::testing::sharded_memory_test
