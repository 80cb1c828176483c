// Compares the operators that dtrain calls on a device with the table of docs/guide/devices.md that lists
// the requirements of their CUDA kernels.
#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "device/on_fake.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/model/family.h"
#include "dtrain/model/token_sampler.h"
#include "dtrain/parallel/compress/internal/top_k.h"
#include "support/engine_run.h"
#include "support/fake_device/operators/cuda_operators.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"

namespace dtrain::testing::operators_test {
namespace {

config::Config with(config::Config config, std::string_view key, std::string_view value) {
  set(config, key, value);
  return config;
}

// Runs `body` after a step, on ranks with one fake device each.
template <typename Body>
void on_devices(const config::Config& config, Body body) {
  on_threads(num_ranks(config), [&](comm::World& host) {
    const auto world = on_fake({std::shared_ptr<void>(), &host});
    EngineRun run(config, *world);
    run.steps(1);
    body(run);
  });
}

void train_and_evaluate(const config::Config& config) {
  on_devices(config, [&](EngineRun& run) {
    parallel::StepEngine& engine = run.job().engine();
    (void)engine.evaluate({.num_sequences = 2,
                           .length = config.data.seq_len,
                           .read = [&](std::int64_t first, std::int64_t count) {
                             data::Batch batch{.first_sample = first,
                                               .num_sequences = count,
                                               .length = config.data.seq_len};
                             batch.inputs.resize(static_cast<std::size_t>(count * batch.length));
                             batch.targets = batch.inputs;
                             return batch;
                           }});
    (void)engine.parameter_norm();
    (void)engine.compression();
    (void)checkpoint::first_not_finite(engine.whole_model().state());
    engine.whole_model().visit_parameters(
        [](param::ParameterId, const at::Tensor& values) { values.cpu(); });
  });
}

void train_within_limits(const config::Config& config) {
  on_devices(config, [&](EngineRun& run) {
    data::Batch batch{.num_sequences = 2, .length = config.data.seq_len};
    batch.inputs.resize(static_cast<std::size_t>(2 * batch.length));
    batch.targets = batch.inputs;
    (void)run.job().engine().train_step({&batch, 1}, {.max_norm = config.train.grad_clip,
                                                      .learning_rate = config.train.lr.value(),
                                                      .limits = {.loss = 100}});
  });
}

void generate(const config::Config& config, at::ScalarType dtype) {
  on_devices(config, [&](EngineRun& run) {
    comm::World& world = run.job().world();
    const param::Arena weights(param::ArenaLayout(run.job().whole_model().parameters), dtype,
                               [&](std::int64_t bytes) { return world.allocate(bytes); });
    const std::vector<std::int64_t> prompt{1, 2, 3, 4};
    const auto reader = model::family_of(config.model).make_generator(config.model, weights);
    model::TokenSampler sampler({});
    (void)sampler.sample(reader->read_prompt(prompt), 0);
    const auto generator = model::family_of(config.model).make_generator(config.model, weights);
    for (const std::int64_t token : {3, 5, 7}) {
      (void)sampler.sample(generator->step(token), token);
    }
  });
}

// Large enough that only a sample is sorted.
void compress_many_values() {
  const at::TensorOptions on_device = at::TensorOptions(c10::Device(fake::kType, 0));
  const std::int64_t size = 2 * parallel::TopK::kExact;
  const at::Tensor values = at::ones({size}, on_device.dtype(at::kFloat));
  values.narrow(0, 100, 50).fill_(3);
  const at::Tensor message =
      at::zeros({parallel::TopK::message_bytes(size, 0.001)}, on_device.dtype(at::kByte));
  parallel::TopK::compress(values, 0.001, message);
}

// Runs all device code.
void call_all() {
  const config::Config tiny = tiny_config();
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    const config::Config config = with(tiny, "machine.dtype", dtype);
    train_and_evaluate(config);
    train_and_evaluate(with(config, "machine.attention", "chunked:12"));
    train_and_evaluate(laid_out(config, 1, 2));
    config::Config split = meshed(config, {{Axis::pp, 2}, {Axis::tp, 2}}, 2);
    split.layout.tp_vocab = true;
    train_and_evaluate(split);
  }
  train_and_evaluate(sharded(tiny, 2, 2, "fsdp:full"));
  train_within_limits(tiny);
  for (const char* scheme : {"bf16", "topk:0.05", "powersgd:2"}) {
    const config::Config config = with(tiny, "machine.compress", scheme);
    train_and_evaluate(laid_out(with(config, "machine.compress_min_elements", "64"), 2, 2));
  }
  compress_many_values();
  generate(tiny, at::kFloat);
  generate(tiny, at::kBFloat16);
}

// The names in the first column of the section's tables.
std::set<std::string> documented_operators() {
  std::ifstream page(DTRAIN_SOURCE_DIR "/docs/guide/devices.md");
  std::set<std::string> names;
  bool is_here = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) is_here = line == "## Operators";
    if (!is_here || !line.starts_with("| `")) continue;
    const std::string column = line.substr(2, line.find(" | ", 2) - 2);
    for (std::size_t begin = column.find('`'); begin != column.npos;) {
      const std::size_t end = column.find('`', begin + 1);
      names.insert(column.substr(begin + 1, end - begin - 1));
      begin = column.find('`', end + 1);
    }
  }
  return names;
}

TEST_CASE("The table lists exactly the operators called on a device") {
  fake::install();
  for (const fake::Execution execution : {fake::Execution::prompt, fake::Execution::late}) {
    fake::set_options({.execution = execution});
    call_all();
  }
  fake::set_options({});
  CHECK(fake::take_races() == std::vector<std::string>{});
  CHECK(fake::unlisted_operators() == std::set<std::string>{});
  CHECK(fake::called_operators() == fake::listed_operators());
}

TEST_CASE("docs/guide/devices.md lists the operators of the table") {
  CHECK(documented_operators() == fake::listed_operators());
}

}  // namespace
}  // namespace dtrain::testing::operators_test
