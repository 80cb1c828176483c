// Promise 1 for the tensor and pipeline axes: results agree to rounding, tested in float64.
//
// In float32, rounding would hide defects; docs/guide/determinism.md says by how much.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/saved_run.h"
#include "support/engine_run.h"
#include "support/oracles/sensitivity.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/values.h"

namespace dtrain::testing::mesh_test {
namespace {

struct Layout {
  mesh::MeshShape mesh;
  std::string schedule = "1f1b";
  std::string data_axis = "ddp";  // "zero:1" and so on with a stage, "hybrid:2" of two shards
};

// Settings besides the layout that a case varies.
struct Variant {
  bool accumulates = false;  // up to four microbatches for each data-parallel rank, instead of one
  bool drops = false;
  bool recomputes = false;
  bool ties = false;
  bool splits_vocab = false;
};

std::string name_of(const Layout& layout, const Variant& variant) {
  return fmt::format(
      "pp {} ({}) x dp {} ({}) x tp {}, accumulation {}, dropout {}, recompute {}, "
      "tied {}, split vocabulary {}",
      layout.mesh[Axis::pp], layout.schedule, layout.mesh[Axis::dp], layout.data_axis,
      layout.mesh[Axis::tp], variant.accumulates, variant.drops, variant.recomputes, variant.ties,
      variant.splits_vocab);
}

// Eight levels for four stages of two chunks; four heads, which eight tensor-parallel ranks must
// split.
config::Config base_config(const Variant& variant) {
  config::Config config = tiny_config();
  config.model = {.layers = 8,
                  .width = 16,
                  .heads = 4,
                  .family = config::bdh::Settings{.neurons = 32, .tie_layers = variant.ties},
                  .dropout = variant.drops ? 0.1 : 0.0};
  config.data.seq_len = 16;
  config.train.steps = 5;
  set(config, "machine.dtype", "float64");
  return config;
}

config::Config config_of(const Layout& layout, const Variant& variant,
                         const std::string& dtype = "float64") {
  config::Config config = base_config(variant);
  set(config, "machine.dtype", dtype);
  set(config, "layout.schedule_pp", layout.schedule);
  const std::string kind = layout.data_axis.substr(0, layout.data_axis.find(':'));
  set(config, "layout.data_axis", kind == "hybrid" ? "fsdp" : kind);
  if (kind == "hybrid") {
    set(config, "layout.fsdp_sharding", kind);
    config.layout.shard_size = layout.data_axis.back() - '0';
  }
  if (config.layout.data_axis == config::DataAxisKind::zero)
    config.layout.zero_stage = layout.data_axis.back() - '0';
  config.layout.tp_vocab = variant.splits_vocab && layout.mesh[Axis::tp] > 1;
  if (variant.recomputes) set(config, "machine.recompute", "level");
  const bool needs_several = layout.schedule.starts_with("interleaved");
  const std::int64_t most = std::min<std::int64_t>(4, config.batch.global / layout.mesh[Axis::dp]);
  return meshed(config, layout.mesh, variant.accumulates || needs_several ? most : 1);
}

struct Single {
  Trace trace;
  TraceBound bound;
};

// A single rank that computes the whole batch as one microbatch.
const Single& single(const Variant& variant) {
  static std::map<std::pair<bool, bool>, Single> known;
  const auto [found, is_new] = known.try_emplace({variant.drops, variant.ties});
  if (is_new) {
    const config::Config config = laid_out(base_config(variant), 1, 1);
    found->second = {train_on_threads(config).front(), rounding_bound_of(config, at::kDouble)};
  }
  return found->second;
}

const std::vector<Layout> kLayouts{
    {.mesh = {{Axis::tp, 2}}},
    {.mesh = {{Axis::tp, 4}}},
    {.mesh = {{Axis::tp, 8}}},
    {.mesh = {{Axis::pp, 2}}, .schedule = "gpipe"},
    {.mesh = {{Axis::pp, 2}}},
    {.mesh = {{Axis::pp, 2}}, .schedule = "interleaved:2"},
    {.mesh = {{Axis::pp, 4}}, .schedule = "gpipe"},
    {.mesh = {{Axis::pp, 4}}},
    {.mesh = {{Axis::pp, 4}}, .schedule = "interleaved:2"},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "zero:1"},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "zero:2"},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "fsdp"},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}}, .schedule = "interleaved:2", .data_axis = "fsdp"},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}}, .schedule = "gpipe", .data_axis = "zero:2"},
    {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}}, .data_axis = "fsdp"},
    {.mesh = {{Axis::pp, 2}, {Axis::tp, 4}}, .schedule = "interleaved:2"},
    {.mesh = {{Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "fsdp"},
    {.mesh = {{Axis::dp, 2}, {Axis::tp, 4}}, .data_axis = "zero:1"},
    {.mesh = {{Axis::dp, 4}, {Axis::tp, 2}}, .data_axis = "zero:3"},
};

// Rows of an orthogonal array: eight rows cover all four combinations of any two settings, and a
// row with its complement covers both values of each setting for a layout.
Variant variant_of(std::size_t row, bool opposite) {
  const bool a = (row & 1) != 0;
  const bool b = (row & 2) != 0;
  const bool c = (row & 4) != 0;
  return {.accumulates = a != opposite,
          .drops = b != opposite,
          .recomputes = c != opposite,
          .ties = (a != b) != opposite,
          .splits_vocab = (a != c) != opposite};
}

void check_case(const Layout& layout, const Variant& variant) {
  INFO(name_of(layout, variant));
  const std::vector<Trace> traces = train_on_threads(config_of(layout, variant));
  for (const Trace& trace : traces) CHECK(trace.text() == traces.front().text());
  check_near(traces.front(), single(variant).trace, single(variant).bound);
}

// With all level matrices frozen, the middle stages train nothing.
TEST_CASE("With frozen parameters a mesh trains what one rank trains") {
  const Variant variant{.accumulates = true, .ties = true};
  const std::vector<std::string> frozen =
      GENERATE(std::vector<std::string>{"encoder", "embed.weight"},
               std::vector<std::string>{"encoder", "encoder_v", "decoder"});
  config::Config one = laid_out(base_config(variant), 1, 1);
  one.train.freeze = frozen;
  const Trace expected = train_on_threads(one).front();
  const TraceBound bound = rounding_bound_of(one, at::kDouble);
  for (const Layout& layout : std::vector<Layout>{
           {.mesh = {{Axis::tp, 2}}},
           {.mesh = {{Axis::pp, 4}}},
           {.mesh = {{Axis::pp, 2}}, .schedule = "interleaved:2"},
           {.mesh = {{Axis::pp, 4}, {Axis::dp, 2}}, .data_axis = "fsdp"},
           {.mesh = {{Axis::pp, 4}, {Axis::dp, 2}}, .data_axis = "zero:1"},
           {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "zero:2"}}) {
    INFO(name_of(layout, variant));
    config::Config config = config_of(layout, variant);
    config.train.freeze = frozen;
    const std::vector<Trace> traces = train_on_threads(config);
    for (const Trace& trace : traces) CHECK(trace.text() == traces.front().text());
    check_near(traces.front(), expected, bound);
  }
}

TEST_CASE("A mesh trains what one rank trains, in any pair of settings") {
  const std::size_t index = GENERATE(range(std::size_t{0}, kLayouts.size()));
  for (const bool opposite : {false, true})
    check_case(kLayouts[index], variant_of(index, opposite));
}

// Minutes: scripts/soak.sh mesh.
TEST_CASE("A mesh trains what one rank trains, in every combination", "[.every-mesh]") {
  for (const Layout& layout : kLayouts) {
    for (unsigned bits = 0; bits < 32; ++bits) {
      const Variant variant{.accumulates = (bits & 1) != 0,
                            .drops = (bits & 2) != 0,
                            .recomputes = (bits & 4) != 0,
                            .ties = (bits & 8) != 0,
                            .splits_vocab = (bits & 16) != 0};
      if (variant.splits_vocab && layout.mesh[Axis::tp] == 1) continue;
      check_case(layout, variant);
    }
  }
}

TEST_CASE("Processes on a mesh have the bits of threads, over shm and over gloo") {
  const std::vector<Layout> layouts{
      {.mesh = {{Axis::tp, 2}}},
      {.mesh = {{Axis::pp, 4}}, .schedule = "interleaved:2"},
      {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}}, .data_axis = "zero:2"},
      {.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "fsdp"},
  };
  const std::size_t index = GENERATE_COPY(range(std::size_t{0}, layouts.size()));
  const Variant variant = variant_of(index + 1, false);
  INFO(name_of(layouts[index], variant));
  config::Config config = config_of(layouts[index], variant);
  config.train.steps = 3;
  const std::string threads = train_on_threads(config).front().text();
  for (const std::string backend : {"shm", "gloo"}) {
    INFO(backend);
    for (const RankOutcome& outcome : train_on_processes(config, backend)) {
      INFO(outcome.standard_error);
      CHECK(outcome.status == 0);
      CHECK(outcome.text == threads);
    }
  }
}

// Compares ranks' state by name and box; ranks that hold the same piece must have the same bits.
TEST_CASE("All copies of a piece of the state end with the same bits") {
  const Layout layout =
      GENERATE(Layout{.mesh = {{Axis::tp, 4}}}, Layout{.mesh = {{Axis::pp, 4}}},
               Layout{.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "fsdp"},
               Layout{.mesh = {{Axis::pp, 2}, {Axis::dp, 4}}, .data_axis = "hybrid:2"});
  const Variant variant{.accumulates = true, .ties = true};
  INFO(name_of(layout, variant));
  config::Config config = config_of(layout, variant, "float32");
  config.train.steps = 5;
  std::mutex mutex;
  std::map<std::string, std::pair<at::Tensor, std::int64_t>> seen;  // and its number of copies
  on_threads(num_ranks(config), [&](comm::World& world) {
    EngineRun run(config, world);
    run.steps(config.train.steps);
    for (const checkpoint::Piece& piece : run.job().engine().whole_model().state()) {
      const std::string place =
          fmt::format("{} {} {}", piece.name, fmt::join(piece.box.offsets, ","),
                      fmt::join(piece.box.sizes, ","));
      const std::lock_guard lock(mutex);
      const auto [found, is_new] = seen.try_emplace(place, piece.tensor.clone(), 0);
      ++found->second.second;
      expect(at::equal(found->second.first, piece.tensor), place);
    }
    (void)run.job().engine().parameter_norm();  // keeps ranks alive until all have compared
  });
  const auto most = std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) {
    return a.second.second < b.second.second;
  });
  CHECK(most->second.second == num_ranks(config));
}

struct Alone {
  Trace initial;  // before the first step
  Trace trained;
  TraceBound bound;
};

// One rank, in `dtype`.
const Alone& alone_in(const std::string& dtype, const Variant& variant) {
  static std::map<std::string, Alone> known;
  const auto [found, is_new] = known.try_emplace(dtype);
  if (is_new) {
    config::Config config = laid_out(base_config(variant), 1, 1);
    set(config, "machine.dtype", dtype);
    config.train.steps = 0;
    found->second.initial = train_on_threads(config).front();
    config.train.steps = 8;
    found->second.trained = train_on_threads(config).front();
    config::Config same = laid_out(base_config(variant), 1, 1);
    same.train.steps = 8;
    found->second.bound = rounding_bound_of(same, scalar_type_of(dtype));
  }
  return found->second;
}

// Training in 16 bits may lose only precision. In float16 the first steps overflow and are skipped;
// most of the eight update the weights.
TEST_CASE("Meshes train in 16 bits what one rank trains, to their precision") {
  const std::string dtype = GENERATE("bfloat16", "float16");
  const Layout layout =
      GENERATE(Layout{.mesh = {{Axis::tp, 2}}}, Layout{.mesh = {{Axis::tp, 8}}},
               Layout{.mesh = {{Axis::pp, 2}}, .schedule = "interleaved:2"},
               Layout{.mesh = {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, .data_axis = "fsdp"});
  const Variant variant{
      .accumulates = true, .drops = true, .recomputes = true, .splits_vocab = true};
  INFO(dtype << " " << name_of(layout, variant));
  config::Config config = config_of(layout, variant, dtype);
  config.train.steps = 8;
  const auto& [initial, expected, bound] = alone_in(dtype, variant);
  const Trace found = train_on_threads(config).front();
  const auto updates = expected.state.at("optimizer.num_updates").item<double>();
  CHECK(updates >= (dtype == "float16" ? 4 : 8));
  CHECK(expected.losses.back() < expected.losses.front() - 0.5);
  check_updates_near(found, expected, initial, bound);
}

struct Sent {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;

  bool operator==(const Sent&) const = default;
};

Sent sent_by(const comm::ProcessGroup& group) {
  const comm::CallCounters counters = group.calls().counters();
  return {counters.calls, counters.bytes_sent};
}

// Messages of one step's forward_backward: activations group, gradients group.
TEST_CASE("Stages send each microbatch's activation and gradient once, and nothing else") {
  const std::string schedule = GENERATE("gpipe", "1f1b", "interleaved:2");
  config::Config config =
      config_of({.mesh = {{Axis::pp, 4}}, .schedule = schedule}, {.accumulates = true});
  const std::int64_t microbatches = config.batch.grad_accum;
  const std::int64_t chunks = schedule == "interleaved:2" ? 2 : 1;
  const std::int64_t value = config.batch.microbatch * config.data.seq_len * config.model.width * 8;
  on_threads(4, [&](comm::World& world) {
    EngineRun run(config, world);
    const mesh::MeshGroups& groups = run.job().groups();
    const comm::ProcessGroup& forward = groups.along(Axis::pp);
    const comm::ProcessGroup& backward = groups.pp_gradients();
    const Sent forward_before = sent_by(forward);
    const Sent backward_before = sent_by(backward);
    run.forward_backward_only();
    const std::int64_t stage = groups.coordinate()[Axis::pp];
    // The last part sends no activation, the first no gradient.
    const std::int64_t gives = microbatches * (chunks - (stage == 3 ? 1 : 0));
    const std::int64_t takes = microbatches * (chunks - (stage == 0 ? 1 : 0));
    const Sent now = sent_by(forward);
    const Sent back = sent_by(backward);
    expect(now.calls - forward_before.calls == gives + takes, "activations sent and received");
    expect(now.bytes - forward_before.bytes == gives * value, "bytes of activations");
    expect(back.calls - backward_before.calls == gives + takes, "gradients received and sent");
    expect(back.bytes - backward_before.bytes == takes * value, "bytes of gradients");
    expect(sent_by(groups.along(Axis::tp)).bytes == 0, "no tensor axis");
  });
}

// Number of calls by payload, such as "all_reduce of 512 Double".
using CallCounts = std::map<std::string, std::int64_t>;

// Returns a group's calls after the first `before`, at most as many as it records.
CallCounts calls_since(const comm::ProcessGroup& group, std::int64_t before) {
  CallCounts counts;
  for (const comm::CallRecord& call : group.calls().records()) {
    if (static_cast<std::int64_t>(call.number) <= before) continue;
    ++counts[fmt::format("{} of {} {}", call.op, call.count, c10::toString(call.dtype))];
  }
  return counts;
}

// The table of docs/internals/tensor_parallel.md, for each microbatch.
TEST_CASE(
    "A tensor axis sends one activation per level each way, within heads too, and nothing else") {
  const std::int64_t tp = GENERATE(2, 4, 8);
  const bool recomputes = GENERATE(false, true);
  const bool splits_vocab = GENERATE(false, true);
  config::Config config =
      config_of({.mesh = {{Axis::tp, tp}}},
                {.accumulates = true, .recomputes = recomputes, .splits_vocab = splits_vocab});
  const std::int64_t microbatches = config.batch.grad_accum;
  const std::int64_t tokens = config.batch.microbatch * config.data.seq_len;  // B·T
  const auto reduced = [](std::int64_t count) {
    return fmt::format("all_reduce of {} Double", count);
  };
  const std::string activation = reduced(tokens * config.model.width);  // B·T·D
  const std::int64_t of_levels = (recomputes ? 3 : 2) * config.model.layers * microbatches;
  CallCounts axis_calls{{activation, of_levels}};
  if (splits_vocab) {
    axis_calls[activation] += 2 * microbatches;  // embedding forward, output matrix backward
    axis_calls[fmt::format("all_reduce max of {} Double", tokens)] = microbatches;
    axis_calls[reduced(2 * tokens)] = microbatches;  // sums and the targets' logits
  }
  const CallCounts head_calls = tp == 8 ? CallCounts{{activation, of_levels}} : CallCounts{};
  on_threads(tp, [&](comm::World& world) {
    EngineRun run(config, world);
    const mesh::MeshGroups& groups = run.job().groups();
    const comm::ProcessGroup& axis = groups.along(Axis::tp);
    const std::int64_t before = sent_by(axis).calls;
    const comm::ProcessGroup& head = *groups.tensor_subgroups().front();
    const std::int64_t head_before = sent_by(head).calls;
    run.forward_backward_only();
    expect(calls_since(axis, before) == axis_calls, "calls over the axis");
    expect(calls_since(head, head_before) == head_calls, "calls within heads");
  });
}

}  // namespace
}  // namespace dtrain::testing::mesh_test
