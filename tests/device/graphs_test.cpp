// Tests that training with graphs on the fake accelerator is bit-identical to the CPU.
#include <array>

#include "device/on_fake.h"
#include "dtrain/config/bdh/settings.h"
#include "support/fake_device/counters.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"

namespace dtrain::testing::graphs_test {
namespace {

constexpr std::uint64_t kPasses = 2 * 5;  // per microbatch: forward and backward of 5 blocks

// The first of four steps runs without graphs.
void check_graphs(const config::Config& config) {
  fake::install();
  fake::reset_counters(0);
  check_bits(config, /*compile=*/true);
  const auto passes = kPasses * static_cast<std::uint64_t>(config.batch.grad_accum);
  CHECK(fake::counters(0).captures == 2 * passes);  // prompt, late
  CHECK(fake::counters(0).replays == 2 * 3 * passes);
  const auto ranks =
      static_cast<std::uint64_t>(config.layout.pp * config.layout.dp * config.layout.tp);
  CHECK(fake::counters(0).emptied_caches == 2 * ranks);  // before the first capture of each rank
}

TEST_CASE("Graphs have the CPU's bits") { check_graphs(tiny_config()); }

TEST_CASE("Graphs with gradient accumulation have the CPU's bits") {
  check_graphs(laid_out(tiny_config(), 1, 4));
  config::Config fast = laid_out(tiny_config(), 1, 2);
  fast.machine.reduction = config::Reduction::fast;
  check_graphs(fast);
}

TEST_CASE("Graphs of replicas have the CPU's bits") { check_graphs(laid_out(tiny_config(), 2, 2)); }

TEST_CASE("Graphs of shards have the CPU's bits") {
  for (const char* what :
       {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2", "zero:3", "fsdp:full+local"}) {
    INFO(what);
    check_graphs(sharded(tiny_config(), 2, 2, what));
  }
  check_graphs(sharded(tiny_config(), 4, 1, "hybrid:2"));
  config::Config untied = tiny_config();
  config::bdh::settings_of(untied.model).tie_layers = false;
  check_graphs(sharded(untied, 2, 2, "fsdp:full"));
}

TEST_CASE("Graphs have the CPU's results in 16 bits") {
  for (const char* dtype : {"bfloat16", "float16"}) {
    config::Config config = laid_out(tiny_config(), 1, 2);
    set(config, "machine.dtype", dtype);
    check_graphs(config);
    set(config, "machine.dtype", "float32");
    config = sharded(tiny_config(), 2, 1, "fsdp:full");
    set(config, "machine.dtype", dtype);
    check_graphs(config);
  }
}

TEST_CASE("Graphs with recomputation have the CPU's bits") {
  config::Config config = laid_out(tiny_config(), 1, 2);
  set(config, "machine.recompute", "every:2");
  check_graphs(config);
}

data::Batch batch_of(std::int64_t sequences, std::int64_t first) {
  constexpr std::int64_t kLength = 32;
  data::Batch batch{.first_sample = first, .num_sequences = sequences, .length = kLength};
  for (std::int64_t i = 0; i < sequences * kLength; ++i) {
    batch.inputs.push_back((first * 7 + i * i * 3 + 1) % 256);
    batch.targets.push_back((first * 5 + i * i + 2) % 256);
  }
  return batch;
}

// The shape changes after three steps, and again after two more.
std::string train_on_shapes(const config::Config& config, comm::World& world) {
  EngineRun run(config, world);
  std::string losses;
  std::int64_t first = 0;
  for (const std::int64_t sequences : std::array{4, 4, 4, 2, 2, 4, 4, 4}) {
    const std::array batches{batch_of(sequences, first)};
    first += sequences;
    const parallel::StepResult result = run.job().engine().train_step(
        batches, {.max_norm = config.train.grad_clip, .learning_rate = config.train.lr.value()});
    losses += fmt::format("{:a} {:a}\n", result.loss.mean(), result.grad_norm);
  }
  return losses + run.trace().text();
}

TEST_CASE("Another shape is captured again") {
  fake::install();
  config::Config config = tiny_config();
  std::string expected;
  std::string found;
  on_threads(1, [&](comm::World& host) {
    expected = train_on_shapes(config, host);
    config.machine.compile = true;
    fake::reset_counters(0);
    const auto world = on_fake({std::shared_ptr<void>(), &host});
    found = train_on_shapes(config, *world);
  });
  CHECK(found == expected);
  CHECK(fake::counters(0).captures == 3 * kPasses);
  CHECK(fake::counters(0).emptied_caches == 3);  // once per shape
  CHECK(fake::counters(0).replays == 5 * kPasses);
}

TEST_CASE("The host waits once per step with graphs") {
  fake::install();
  config::Config config = laid_out(tiny_config(), 1, 2);
  config.machine.compile = true;
  on_threads(1, [&](comm::World& host) {
    const auto world = on_fake({std::shared_ptr<void>(), &host});
    EngineRun run(config, *world);
    run.steps(2);
    fake::reset_counters(0);
    run.steps(2);
  });
  CHECK(fake::counters(0).host_waits.total() == 2);
}

}  // namespace
}  // namespace dtrain::testing::graphs_test
