#include "dtrain/parallel/engine/step_engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <catch2/catch.hpp>
#include <limits>
#include <span>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/family.h"
#include "support/engine_run.h"
#include "support/ids.h"
#include "support/oracles/rounding.h"
#include "support/oracles/small_blocks.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::parallel::step_engine_test {
namespace {

using testing::BlockWatch;
using testing::expect;
using testing::MemorySource;
using testing::same_bits;
using testing::small_batch;
using testing::operator""_p;

std::vector<data::Batch> batches_of(std::int64_t rank, std::int64_t grad_accum,
                                    std::int64_t first_sample = 0) {
  std::vector<data::Batch> batches;
  for (std::int64_t m = 0; m < grad_accum; ++m) {
    batches.push_back(small_batch(first_sample + (rank * grad_accum + m) * 2));
  }
  return batches;
}

mesh::MeshGroups replicas_of(comm::World& world) {
  return {world, mesh::DeviceMesh({{mesh::Axis::dp, world.size()}})};
}

// Counts the calls for the loss and for gradients.
std::int64_t calls_of(const mesh::MeshGroups& groups) {
  return groups.along(mesh::Axis::dp).calls().counters().calls;
}

// Gradients of one step of a watched model on dp ranks.
std::vector<at::Tensor> gradients_on(std::int64_t dp, std::int64_t grad_accum,
                                     const std::vector<BlockWatch>& watches) {
  std::vector<at::Tensor> gradients(static_cast<std::size_t>(dp));
  testing::on_threads(dp, [&](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    const auto model = testing::small_model(watches);
    StepEngine engine(*model, world, groups,
                      {.grad_accum_steps = grad_accum, .seed = 3, .optimizer = {}});
    // Twice: leftovers of the first step must have no effect.
    for (const std::int64_t first : {100, 0}) {
      engine.forward_backward(batches_of(world.rank(), grad_accum, first));
    }
    gradients[static_cast<std::size_t>(world.rank())] = engine.gradients().flat().clone();
  });
  return gradients;
}

TEST_CASE("Unscaled gradients of a scaled loss have the bits of an unscaled loss") {
  testing::on_threads(1, [](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    std::vector<at::Tensor> gradients;
    for (const bool scales_loss : {false, true}) {
      const auto model = testing::small_model({{}});
      StepEngine engine(*model, world, groups,
                        {.precision = {.scales_loss = scales_loss}, .seed = 3, .optimizer = {}});
      engine.forward_backward(batches_of(0, 1));
      engine.clip_grad_norm(0);
      gradients.push_back(engine.gradients().flat().clone());
    }
    // The scale is a power of two, so scaling is exact.
    expect(same_bits(gradients[0], gradients[1]), "gradients");
  });
}

TEST_CASE("A parameter that only some ranks use has the single rank's gradient on all") {
  // Microbatches begin at samples 0, 2, 4, 6: the blocks are used by two, by one and by none.
  const std::vector<BlockWatch> watches{
      {.uses_parameter = [](std::int64_t sample) { return sample % 4 == 0; }},
      {.uses_parameter = [](std::int64_t sample) { return sample % 100 == 6; }},
      {.uses_parameter = [](std::int64_t) { return false; }}};
  const at::Tensor single = gradients_on(1, 4, watches).front();
  for (const auto& [dp, grad_accum] : {std::pair{4, 1}, std::pair{2, 2}}) {
    for (const at::Tensor& found : gradients_on(dp, grad_accum, watches)) {
      CHECK(same_bits(found, single));
    }
  }
  const param::ArenaLayout layout(testing::small_model(watches)->parameters);
  const auto largest = [&](param::ParameterId id) {
    const auto range = layout.range(id);
    return single.narrow(0, range.begin, range.size()).abs().max().item<float>();
  };
  CHECK(largest(1_p) > 0);
  CHECK(largest(2_p) > 0);
  CHECK(largest(3_p) == 0);
}

TEST_CASE("Nothing is communicated before the last microbatch") {
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    std::vector<std::int64_t> calls;
    const auto note = [&] { calls.push_back(calls_of(groups)); };
    const auto model = testing::small_model({{.on_forward = note, .on_backward = note}});
    StepEngine engine(*model, world, groups, {.grad_accum_steps = 3, .seed = 3, .optimizer = {}});
    engine.forward_backward(batches_of(world.rank(), 3));
    // Forward and backward of three microbatches; the last backward has the loss's call before it.
    expect(calls == std::vector<std::int64_t>{0, 0, 0, 0, 0, 1}, "the calls seen by the blocks");
    expect(calls_of(groups) == 2, "the loss and one bucket");
  });
}

TEST_CASE("Buckets are in flight before the backward pass ends") {
  // Untied layers of 6 MiB each between an embedding and a head of 32 KiB.
  const config::ModelConfig sizes{
      .layers = 3,
      .width = 32,
      .heads = 2,
      .family = config::bdh::Settings{.neurons = 8192, .tie_layers = false}};
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    std::vector<std::int64_t> calls;  // made when a level's backward begins
    const auto model = model::make_model(sizes, 8);
    const auto note = [&] { calls.push_back(calls_of(groups)); };
    for (const BlockId level : model->layers().ids()) {
      std::unique_ptr<model::Block>& block = model->blocks[level];
      block = testing::watched(std::move(block), {.on_backward = note});
    }
    StepEngine engine(*model, world, groups, {.seed = 3, .optimizer = {}});
    data::Batch batch{.inputs = std::vector<std::int64_t>(8, world.rank()),
                      .targets = std::vector<std::int64_t>(8, 7),
                      .num_sequences = 1,
                      .length = 8};
    engine.forward_backward({&batch, 1});
    // From the end, four buckets of 4 MiB and a remainder: the last level completes one, the last
    // two layers three. The loss's call precedes all.
    expect(calls == std::vector<std::int64_t>{1, 1 + 1, 1 + 3}, "the calls seen by the layers");
    expect(calls_of(groups) == 1 + 5, "all buckets and the loss");
    const auto records = groups.along(mesh::Axis::dp).calls().records();
    expect(records[1].count == (4 << 20) / 4, "elements of a full bucket");
    std::int64_t elements = 0;
    for (const comm::CallRecord& record : std::span(records).subspan(1)) elements += record.count;
    expect(elements == engine.gradients().flat().numel(), "every element once");
  });
}

TEST_CASE("A non-finite gradient is detected on every rank, not clipped and not applied") {
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    const auto model = testing::small_model({{}});
    StepEngine engine(*model, world, groups, {.seed = 3, .optimizer = {}});
    if (world.rank() == 1) {  // simulates memory corruption
      const at::NoGradGuard no_grad;
      engine.parameters().view(1_p)[0][0].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    engine.forward_backward(batches_of(world.rank(), 1));
    const at::Tensor before = engine.gradients().flat().clone();
    engine.clip_grad_norm(1e-3);
    expect(same_bits(engine.gradients().flat(), before), "gradients as they were");
    const StepResult gradients_alone = engine.finish_step();
    expect(!std::isfinite(gradients_alone.loss.mean()), "the loss on both ranks");
    expect(!std::isfinite(gradients_alone.grad_norm), "the norm on both ranks");
    const at::Tensor parameters = engine.parameters().flat().clone();
    const StepResult result =
        engine.train_step(batches_of(world.rank(), 1), {.max_norm = 1, .learning_rate = 1e-2});
    expect(!result.is_finite() && !result.has_overflowed, "what the step found");
    expect(same_bits(engine.parameters().flat(), parameters), "parameters as they were");
  });
}

TEST_CASE("A step that exceeds its limits skips the update on all ranks and reports it") {
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    const auto model = testing::small_model({{}, {.is_native = true}});
    StepEngine engine(*model, world, groups, {.seed = 3, .optimizer = {}});
    const auto step = [&](const StepLimits& limits) {
      return engine.train_step(batches_of(world.rank(), 1),
                               {.max_norm = 1, .learning_rate = 1e-2, .limits = limits});
    };
    const at::Tensor before = engine.parameters().flat().clone();
    const StepResult found = step({.loss = 1e-9});
    expect(found.is_finite() && found.exceeds_limits, "a loss above its limit");
    expect(same_bits(engine.parameters().flat(), before), "parameters as they were");
    const double loss = found.loss.mean();
    expect(step({.grad_norm = found.grad_norm / 2}).exceeds_limits, "a norm above its limit");
    expect(same_bits(engine.parameters().flat(), before), "parameters as they were, again");
    expect(!step({.loss = 2 * loss, .grad_norm = 2 * found.grad_norm}).exceeds_limits, "within");
    expect(!same_bits(engine.parameters().flat(), before), "an update");
  });
}

TEST_CASE("A vote of any rank reaches all ranks with the loss") {
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = replicas_of(world);
    const auto model = testing::small_model({{}});
    StepEngine engine(*model, world, groups, {.seed = 3, .optimizer = {}});
    const Votes own{world.rank() == 0, world.rank() == 1, false, true};
    engine.forward_backward(batches_of(world.rank(), 1), own);
    expect(engine.finish_step().loss.votes == Votes{true, true, false, true},
           "each yes of any rank");
  });
}

data::Batch sequences(std::int64_t first, std::int64_t count) {
  data::Batch batch{.first_sample = first, .num_sequences = count, .length = 32};
  for (std::int64_t number = first; number < first + count; ++number) {
    for (std::int64_t t = 0; t < 32; ++t) {
      batch.inputs.push_back((t * 11 + number * 3) % 256);
      batch.targets.push_back((t * 7 + number * 5) % 256);
    }
  }
  return batch;
}

TEST_CASE("Evaluation has no dropout and equal bits on any number of ranks") {
  std::vector<double> losses;
  for (const std::int64_t dp : {1, 2, 4}) {
    testing::on_threads(dp, [&](comm::World& world) {
      testing::EngineRun run(testing::laid_out(testing::tiny_config(), dp, 8 / dp), world);
      StepEngine& engine = run.job().engine();
      const EvaluationPlan plan{// five batches, the last one short: ranks compute different numbers
                                .num_sequences = 9,
                                .length = 32,
                                .batch_size = 2,
                                .read = sequences};
      const StepLoss loss = engine.evaluate(plan).value();
      expect(loss.num_tokens == 9 * 32, "every token counts once, a short batch too");
      expect(engine.evaluate(plan)->sum_nll == loss.sum_nll, "nothing is random");
      EvaluationPlan single = plan;
      single.batch_size = 1;
      // A forward pass of three layers rounds 33 results, sums of up to 64 products each.
      const double rounding = testing::Disturbance(at::kFloat, 33 * 64).relative;
      expect(std::abs(engine.evaluate(single)->sum_nll / loss.sum_nll - 1) <= rounding,
             "the size of the batches is a matter of rounding");
      if (world.rank() == 0) losses.push_back(loss.sum_nll);
    });
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] == losses[2]);
}

TEST_CASE("Evaluation reads its next batch after computing the previous one") {
  testing::on_threads(2, [&](comm::World& world) {
    testing::EngineRun run(testing::laid_out(testing::tiny_config(), 2, 4), world);
    StepEngine& engine = run.job().engine();
    std::int64_t computed = 0;
    engine.set_tap([&](std::string_view name, const at::Tensor&) { computed += name == "logits"; });
    std::vector<std::int64_t> asked;
    (void)engine.evaluate({.num_sequences = 9,
                           .length = 32,
                           .batch_size = 2,
                           .read = [&](std::int64_t first, std::int64_t count) {
                             expect(computed == static_cast<std::int64_t>(asked.size()),
                                    "none is held in advance");
                             asked.push_back(first);
                             return sequences(first, count);
                           }});
    expect(asked == (world.rank() == 0 ? std::vector<std::int64_t>{0, 4, 8}
                                       : std::vector<std::int64_t>{2, 6}),
           "each rank its own batches");
  });
}

TEST_CASE("A request to stop an evaluation on one rank soon ends it on all") {
  testing::on_threads(2, [&](comm::World& world) {
    testing::EngineRun run(testing::laid_out(testing::tiny_config(), 2, 4), world);
    std::int64_t read = 0;
    EvaluationPlan plan{.num_sequences = 1000, .length = 32, .batch_size = 2};
    plan.read = [&](std::int64_t first, std::int64_t count) {
      ++read;
      return sequences(first, count);
    };
    plan.wants_stop = [&] { return world.rank() == 1 && read >= 3; };
    expect(!run.job().engine().evaluate(plan).has_value(), "no loss");
    expect(read == 4, "one more batch while the vote is reduced");
    plan.num_sequences = 16;  // the request comes with the last batch, too late to stop anything
    plan.wants_stop = [&] { return read >= 8; };
    expect(run.job().engine().evaluate(plan).has_value(), "a loss");
  });
}

}  // namespace
}  // namespace dtrain::parallel::step_engine_test
