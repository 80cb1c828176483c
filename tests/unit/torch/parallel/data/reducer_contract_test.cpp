// Compares every reducer's predicted memory and traffic with measurements, and adds a custom
// reducer and codec.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <utility>

#include "dtrain/parallel/data/internal/bucket_reducer.h"
#include "dtrain/parallel/data/internal/sharded_reducers.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "support/oracles/small_blocks.h"
#include "unit/torch/parallel/data/small_units.h"

namespace dtrain::parallel::reducer_contract_test {
namespace {

// Each parameter is a unit.
const param::ParameterSpecs kSpecs{spec("a", 6400), spec("b", 12800), spec("c", 3200)};

param::ArenaLayout layout_for(std::int64_t num_shards,
                              const std::vector<param::ParameterId>& frozen = {}) {
  return param::ArenaLayout(
      kSpecs, {.unit_begins = {0_p, 1_p, 2_p}, .num_shards = num_shards, .frozen = frozen});
}

at::Tensor gradient_of(param::ParameterId id, std::int64_t rank) {
  return values_of(rank * 3 + id.value(), kSpecs[id].shape[0], at::kFloat);
}

// A step in which every microbatch has the same gradients.
void step(GradientReducer& reducer, const ReducerSetup& setup, std::int64_t rank) {
  const std::int64_t count = setup.options.num_microbatches;
  const bool keeps_shards = setup.schedule.count(UnitEventKind::reduce, 0_u) > 1;
  for (const auto microbatch : base::first_ids<data::MicrobatchId>(count)) {
    const bool is_last = microbatch + 1 == data::MicrobatchId(count);
    reducer.begin_microbatch(microbatch);
    for (const param::ParameterId id : {2_p, 1_p, 0_p}) {
      if (!setup.layout.is_frozen(id)) reducer.add_gradient(id, gradient_of(id, rank));
      reducer.mark_gradient_ready(id);
      if (setup.layout.is_frozen(id)) continue;
      if (keeps_shards || is_last) reducer.reduce(setup.layout.unit_of(id));
    }
    if (!is_last) reducer.end_microbatch();
  }
  reducer.finish();
}

// Counts memory while tensors hold it.
struct Meter {
  std::int64_t now = 0;
  std::int64_t most = 0;

  param::ArenaAllocator allocator() {
    return [this](std::int64_t bytes) {
      most = std::max(most, now += bytes);
      const at::Tensor memory = at::zeros({bytes}, at::kByte);
      return at::from_blob(
          memory.mutable_data_ptr(), {bytes}, [this, memory, bytes](void*) { now -= bytes; },
          at::kByte);
    };
  }
};

std::int64_t bytes_sent(const comm::ProcessGroup& group) {
  return group.calls().counters().bytes_sent;
}

// Runs on two ranks, or for sharded kinds on four, in pairs that share one copy.
void check_costs(const ReducerKind& kind, bool is_sharded, bool keeps_shards,
                 const std::vector<param::ParameterId>& frozen = {}) {
  const param::ArenaLayout layout = layout_for(is_sharded ? 2 : 1, frozen);
  std::set<param::UnitId> units;
  for (const param::ParameterId id : frozen) units.insert(layout.unit_of(id));
  const UnitSchedule schedule = schedule_of(4, keeps_shards, units);
  const std::int64_t num_ranks = is_sharded ? 4 : 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ReducerSetup setup{.layout = layout,
                             .schedule = schedule,
                             .num_ranks = num_ranks,
                             .options = {.codec = dtype_codec(dtype), .num_microbatches = 4}};
    const MemoryPlan memory = kind.memory(setup);
    const ReducerTraffic traffic = kind.traffic(setup);
    testing::on_threads(num_ranks, [&](comm::World& world) {
      const mesh::MeshGroups groups = groups_of(world, is_sharded ? 2 : 1);
      Meter meter;
      const auto reducer = kind.make(setup, groups, meter.allocator());
      expect(meter.now == memory.gradients, "what is held always");
      for (int round = 0; round < 2; ++round) {
        step(*reducer, setup, world.rank());
        expect(meter.now == memory.gradients, "no whole unit between steps");
      }
      expect(meter.most <= memory.gradients + memory.units, "units at the peak");
      expect(meter.most >= memory.gradients + memory.units / 2, "no more than there are");
      const comm::ProcessGroup& group = is_sharded ? groups.shards() : groups.along(mesh::Axis::dp);
      expect(bytes_sent(group) == 2 * traffic.bytes, "bytes of two steps' reductions");
      expect(group.calls().counters().calls == 2 * traffic.reductions, "reductions of two steps");
    });
    expect((memory.encoded_gradients > 0) == (dtype != at::kFloat), "encoded copies");
  }
}

TEST_CASE("Memory and traffic of reducers match their predictions") {
  CHECK_NOTHROW(check_costs(kReducerKind<BucketReducer>, false, false));
  CHECK_NOTHROW(check_costs(kReducerKind<FullGradientReducer>, true, false));
  CHECK_NOTHROW(check_costs(kReducerKind<GradientShardReducer>, true, true));
}

// Two ranks' costs of a reducer of float32 gradients, of which "b" is frozen or not.
std::pair<MemoryPlan, ReducerTraffic> costs_of(const ReducerKind& kind, bool is_sharded,
                                               bool keeps_shards, bool freezes) {
  using Frozen = std::vector<param::ParameterId>;
  const param::ArenaLayout layout =
      layout_for(is_sharded ? 2 : 1, freezes ? Frozen{1_p} : Frozen{});
  const UnitSchedule schedule = schedule_of(
      1, keeps_shards, freezes ? std::set<param::UnitId>{1_u} : std::set<param::UnitId>{});
  const ReducerSetup setup{.layout = layout, .schedule = schedule, .num_ranks = 2};
  return {kind.memory(setup), kind.traffic(setup)};
}

TEST_CASE("Reducers hold and send nothing for frozen parameters") {
  const auto check = [](const ReducerKind& kind, bool is_sharded, bool keeps_shards) {
    CHECK_NOTHROW(check_costs(kind, is_sharded, keeps_shards, {1_p}));
    const auto [memory, traffic] = costs_of(kind, is_sharded, keeps_shards, false);
    const auto [less, sent] = costs_of(kind, is_sharded, keeps_shards, true);
    const std::int64_t all = 6400 + 12800 + 3200;
    CHECK(less.gradients * all == memory.gradients * (all - 12800));
    CHECK(sent.bytes * all == traffic.bytes * (all - 12800));
  };
  check(kReducerKind<BucketReducer>, false, false);
  check(kReducerKind<FullGradientReducer>, true, false);
  check(kReducerKind<GradientShardReducer>, true, true);
}

// Encodes gradients divided by 64 in float16, so that large ones fit.
class ScaledHalf final : public GradientCodec {
  at::ScalarType dtype() const override { return at::kHalf; }
  bool copies(at::ScalarType) const override { return true; }
  at::Tensor encode(const at::Tensor& gradients) const override {
    return (gradients / 64).to(at::kHalf);
  }
  void decode(const at::Tensor& sum, const at::Tensor& gradients) const override {
    gradients.copy_(sum).mul_(64);
  }
};

TEST_CASE("Every reducer uses a custom codec") {
  const ScaledHalf codec;
  for (const ReducerKind& kind : {kReducerKind<BucketReducer>, kReducerKind<FullGradientReducer>,
                                  kReducerKind<GradientShardReducer>}) {
    const bool is_sharded = kind.memory != &BucketReducer::memory;
    const param::ArenaLayout layout = layout_for(is_sharded ? 2 : 1);
    const UnitSchedule schedule = schedule_of(1, true);
    const ReducerSetup setup{.layout = layout,
                             .schedule = schedule,
                             .num_ranks = 2,
                             .options = {.codec = std::make_shared<ScaledHalf>()}};
    testing::on_threads(2, [&](comm::World& world) {
      const mesh::MeshGroups groups = groups_of(world, is_sharded ? 2 : 1);
      const auto reducer = kind.make(setup, groups, param::private_memory);
      step(*reducer, setup, world.rank());
      for (const param::ParameterId id : kSpecs.ids()) {
        const param::ElementRange own = layout.range_in(id, param::ShardId(groups.shards().rank()));
        const at::Tensor expected = at::zeros({layout.range(id).size()}, at::kFloat);
        const auto& encoder = static_cast<const GradientCodec&>(codec);
        encoder.decode(encoder.encode(gradient_of(id, 0)) + encoder.encode(gradient_of(id, 1)),
                       expected);
        expect(same_bits(reducer->gradients().slice(own),
                         expected.narrow(0, own.begin - layout.range(id).begin, own.size())),
               "the sum of what was encoded");
      }
      const comm::ProcessGroup& all = is_sharded ? groups.shards() : groups.along(mesh::Axis::dp);
      expect(bytes_sent(all) == kind.traffic(setup).bytes, "two bytes for each element");
    });
  }
}

// Adds earlier rounding errors to each step's gradients before sending.
class FeedbackReducer final : public GradientReducer {
 public:
  FeedbackReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                  const param::ArenaAllocator& allocate)
      : group_(groups.along(mesh::Axis::dp)),
        codec_(setup.options.codec),
        store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
               setup.options.reduction),
        left_(setup.layout, setup.options.dtype, allocate) {}

  void begin_microbatch(data::MicrobatchId id) override { store_.begin_microbatch(id); }
  param::GradientTarget gradient_of(param::ParameterId id) override {
    return store_.gradient_of(id);
  }
  void mark_gradient_ready(param::ParameterId id) override { store_.mark_gradient_ready(id); }
  void reduce(param::UnitId) override {}
  void end_microbatch() override { store_.end_microbatch(); }
  void finish() override {
    const at::NoGradGuard no_grad;
    const at::Tensor gradients = store_.gradients().flat();
    const at::Tensor left = left_.flat();
    store_.finish({0, gradients.numel()});
    left.add_(gradients);
    const at::Tensor sent = codec_->encode(left.clone());
    codec_->decode(sent, gradients);
    left.sub_(gradients);
    group_.all_reduce(sent).wait();
    codec_->decode(sent, gradients);
  }
  const param::Arena& gradients() const override { return store_.gradients(); }
  ErrorFeedbackState error_feedback() const override { return {.residuals = &left_}; }

  static MemoryPlan memory(const ReducerSetup& setup) {
    const ReducerOptions& options = setup.options;
    const std::int64_t left = param::Arena::bytes(setup.layout, options.dtype);
    return {.gradients = left + GradientStore::bytes(setup.layout, options.dtype,
                                                     options.num_microbatches, options.reduction),
            .encoded_gradients = options.codec->bytes(setup.layout.num_elements(), options.dtype),
            .residuals = left};
  }
  static ReducerTraffic traffic(const ReducerSetup& setup) {
    const std::int64_t bytes = setup.options.codec->sent_bytes(setup.layout.num_elements());
    return {.reductions = 1, .bytes = 2 * bytes * (setup.num_ranks - 1) / setup.num_ranks};
  }

 private:
  comm::ProcessGroup& group_;
  std::shared_ptr<const GradientCodec> codec_;
  GradientStore store_;
  param::Arena left_;
};

TEST_CASE("Memory and traffic of a custom reducer match its predictions") {
  CHECK_NOTHROW(check_costs(kReducerKind<FeedbackReducer>, false, false));
}

// State of a rank when it was saved.
class Saved final : public checkpoint::Source {
 public:
  explicit Saved(const checkpoint::State& state) {
    for (const checkpoint::Piece& piece : state) pieces_[piece.name] = piece.tensor.clone();
  }
  bool has(const std::string& name) const override { return pieces_.contains(name); }
  void read(const checkpoint::Piece& piece) override {
    at::Tensor(piece.tensor).copy_(pieces_.at(piece.name));
  }

 private:
  std::map<std::string, at::Tensor> pieces_;
};

TEST_CASE("An engine trains with a custom reducer, whose state survives a checkpoint") {
  EngineOptions options{.precision = {.reduce = at::kBFloat16}, .seed = 3, .optimizer = {}};
  options.data.num_ranks = 2;
  options.data.reducer = &kReducerKind<FeedbackReducer>;
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = groups_of(world, 1);
    const auto model = testing::small_model({{}});
    const auto train = [&](StepEngine& engine, std::int64_t first_step) {
      for (std::int64_t number = first_step; number < first_step + 2; ++number) {
        const std::vector<data::Batch> batch{testing::small_batch(4 * number + 2 * world.rank())};
        (void)engine.train_step(batch, {.learning_rate = 0.1});
      }
      return engine.parameters().flat().clone();
    };
    StepEngine uninterrupted(*model, world, groups, options);
    (void)train(uninterrupted, 0);
    Saved saved(uninterrupted.whole_model().state());
    const at::Tensor saved_weights = uninterrupted.parameters().flat().clone();
    const std::string own = "reducer.residual." + std::to_string(world.rank()) + ".";
    expect(uninterrupted.whole_model().state().back().name.starts_with(own),
           "a piece of the reducer's own");
    const at::Tensor expected = train(uninterrupted, 2);
    StepEngine resumed(*model, world, groups, options);
    resumed.whole_model().load_state(saved);
    expect(same_bits(train(resumed, 2), expected), "the bits of a run without interruption");
    StepEngine forgetful(*model, world, groups, options);
    forgetful.whole_model().load_state(saved);
    at::Tensor(forgetful.whole_model().state().back().tensor).zero_();
    expect(!same_bits(train(forgetful, 2), expected), "bits that depend on the state");
    EngineOptions plain = options;
    plain.data.reducer = nullptr;
    StepEngine dense(*model, world, groups, plain);
    dense.whole_model().load_state(saved);
    expect(same_bits(dense.parameters().flat(), saved_weights), "weights without the state");
    Saved without(dense.whole_model().state());
    uninterrupted.whole_model().load_state(without);
    expect(same_bits(uninterrupted.parameters().flat(), saved_weights), "the same weights");
    expect(
        uninterrupted.whole_model().state().back().tensor.count_nonzero().item<std::int64_t>() == 0,
        "no state yet");
    const MemoryPlan memory = StepEngine::memory(*model, options, {.sequences = 2, .length = 5});
    const std::int64_t arena = param::Arena::bytes(engine_layout(*model, options), at::kFloat);
    expect(memory.gradients == 2 * arena, "its memory is part of the engine's");
    expect(memory.state == 3 * arena, "weights and two moments");
    expect(memory.residuals == arena, "the reducer's state");
  });
}

TEST_CASE("Gradients reduced in bfloat16 are stored and accumulated in float32") {
  // A unit each. Shards end within parameters.
  const param::ParameterSpecs specs{spec("a", 292), spec("b", 200), spec("c", 364)};
  const auto gradient_in = [&](param::ParameterId id, std::int64_t microbatch) {
    return values_of(microbatch + 9 * id.value(), specs[id].shape[0], at::kFloat);
  };
  const param::ArenaLayout layout(specs, {.unit_begins = {0_p, 1_p, 2_p}, .num_shards = 2});
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = groups_of(world, 2);
    const UnitSchedule schedule = schedule_of(/*num_microbatches=*/2, /*keeps_shards=*/true);
    GradientShardReducer reducer(
        {.layout = layout,
         .schedule = schedule,
         .options = {.codec = dtype_codec(at::kBFloat16), .num_microbatches = 2}},
        groups, param::private_memory);
    for (const auto round : {0_m, 1_m}) {
      reducer.begin_microbatch(round);
      for (const param::ParameterId id : {2_p, 1_p, 0_p}) {
        reducer.add_gradient(id, gradient_in(id, 2 * round.value() + world.rank()));
        reducer.mark_gradient_ready(id);
        reducer.reduce(layout.unit_of(id));
      }
      if (round == 0_m) reducer.end_microbatch();
    }
    reducer.finish();
    const auto sum_of_round = [&](std::int64_t round) {  // over two ranks, rounded once
      return (gradient_in(1_p, 2 * round).to(at::kBFloat16).to(at::kFloat) +
              gradient_in(1_p, 2 * round + 1).to(at::kBFloat16).to(at::kFloat))
          .to(at::kBFloat16)
          .to(at::kFloat);
    };
    const at::Tensor expected = at::zeros({layout.unit_range(1_u).size()}, at::kFloat);
    expected.narrow(0, 0, specs[1_p].shape[0]).copy_(sum_of_round(0) + sum_of_round(1));
    const param::ElementRange own = layout.shard_range(1_u, param::ShardId(world.rank()));
    const std::int64_t begin = own.begin - layout.unit_range(1_u).begin;
    expect(reducer.gradients().flat().scalar_type() == at::kFloat, "float32 gradients");
    expect(at::equal(reducer.gradients().slice(own), expected.narrow(0, begin, own.size())),
           "a float32 sum of bfloat16 sums");
  });
}

}  // namespace
}  // namespace dtrain::parallel::reducer_contract_test
