// Compressed gradients under every layout: equal bits on all ranks, bit-exact resumes, and
// residuals that survive a change of the number of ranks.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "parity/saved_run.h"
#include "support/oracles/rounding.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::testing::compression_test {
namespace {

config::Config compressed(const std::string& scheme) {
  config::Config config = tiny_config();
  set(config, "machine.compress", scheme);
  set(config, "machine.compress_min_elements", "100");
  return config;
}

// Sum of all contributors' residuals, by parameter.
using Residuals = std::map<std::string, at::Tensor>;

void add_residuals(const checkpoint::State& state, Residuals& sums) {
  constexpr std::string_view kPrefix = "reducer.residual.";
  for (const checkpoint::Piece& piece : state) {
    if (!piece.name.starts_with(kPrefix) || piece.replica.index > 0) continue;
    const std::string name = piece.name.substr(piece.name.find('.', kPrefix.size()) + 1);
    at::Tensor& sum = sums.try_emplace(name, at::zeros(piece.global_shape)).first->second;
    at::Tensor part = sum;
    for (std::size_t dim = 0; dim < piece.box.sizes.size(); ++dim) {
      part =
          part.narrow(static_cast<std::int64_t>(dim), piece.box.offsets[dim], piece.box.sizes[dim]);
    }
    part.add_(piece.tensor);
  }
}

Residuals sum_of(const std::vector<Residuals>& of_rank) {
  Residuals sums;
  for (const Residuals& own : of_rank) {
    for (const auto& [name, part] : own) {
      const auto [found, is_new] = sums.try_emplace(name, part);
      if (!is_new) found->second += part;
    }
  }
  return sums;
}

// Trains to `step`, saves there, and returns the residuals of all ranks.
Residuals train_and_save(const config::Config& config, std::int64_t step,
                         const std::string& folder) {
  std::vector<Residuals> of_rank(static_cast<std::size_t>(num_ranks(config)));
  on_threads(num_ranks(config), [&](comm::World& world) {
    EngineRun run(config, world);
    run.steps(step);
    base::Disk disk(base::ErrorKind::checkpoint);
    checkpoint::Saver saver(world_group(run), disk, options_in(folder));
    saver.begin({.step = step, .samples = step * config.batch.global},
                run.job().engine().whole_model().state());
    finish(saver);
    add_residuals(run.job().engine().whole_model().state(),
                  of_rank[static_cast<std::size_t>(world.rank())]);
  });
  return sum_of(of_rank);
}

// Residuals of up to four ranks are added in float32, once by the save and once by the test.
const double kSumBound = rounding_bound(at::kFloat, 2 * 4);

struct Resumed {
  std::vector<Trace> traces;
  Residuals residuals;  // as loaded
};

// frozen_before: parameters that were frozen in the run that saved.
Resumed load_compressed(const config::Config& config, const std::string& folder,
                        const std::vector<std::string>& frozen_before = {}) {
  std::vector<Residuals> of_rank(static_cast<std::size_t>(num_ranks(config)));
  const auto loaded = [&](EngineRun& run, std::size_t rank) {
    add_residuals(run.job().engine().whole_model().state(), of_rank[rank]);
  };
  std::vector<Trace> traces = load_and_train(config, folder, frozen_before, loaded);
  return {.traces = std::move(traces), .residuals = sum_of(of_rank)};
}

// Layouts with replicas.
std::vector<config::Config> layouts(const config::Config& config) {
  config::Config hybrid_stages = config;
  set(hybrid_stages, "layout.data_axis", "fsdp");
  set(hybrid_stages, "layout.fsdp_sharding", "hybrid");
  hybrid_stages.layout.shard_size = 2;
  return {laid_out(config, 2, 4),
          laid_out(config, 4, 2),
          sharded(config, 4, 2, "hybrid:2"),
          sharded(config, 4, 2, "hybrid:2+local"),
          meshed(config, {{Axis::dp, 2}, {Axis::tp, 2}}, 4),
          meshed(config, {{Axis::pp, 2}, {Axis::dp, 2}}, 4),
          meshed(hybrid_stages, {{Axis::pp, 2}, {Axis::dp, 4}}, 2)};
}

TEST_CASE(
    "Ranks have equal bits under every layout, and a resumed run those of an uninterrupted one") {
  const std::string scheme = GENERATE("bf16", "topk:0.05", "powersgd:2");
  for (const config::Config& layout : layouts(compressed(scheme))) {
    INFO(scheme << " by " << layout.layout.strategy << " on " << layout.layout.dp << " x "
                << layout.layout.tp << " x " << layout.layout.pp);
    const std::vector<Trace> whole = train_on_threads(layout);
    for (const Trace& trace : whole) CHECK(trace.losses == whole.front().losses);
    const TempFolder folder;
    (void)train_and_save(layout, 2, folder.path("c"));
    const Resumed resumed = load_compressed(layout, folder.path("c"));
    for (std::size_t rank = 0; rank < whole.size(); ++rank) {
      CHECK(resumed.traces[rank].text() == text_after(whole[rank], 2));
    }
  }
}

TEST_CASE("Residuals survive a resume in any layout") {
  const config::Config config = compressed("topk:0.05");
  const std::vector<config::Config> all = layouts(config);
  for (const std::size_t from : {1U, 2U, 5U, 6U}) {
    const TempFolder folder;
    const Residuals saved = train_and_save(all[from], 2, folder.path("c"));
    REQUIRE(saved.size() > 2);
    for (const std::size_t to : {0U, 2U, 4U, 5U, 6U}) {
      INFO("from layout " << from << " to " << to);
      const Resumed resumed = load_compressed(all[to], folder.path("c"));
      for (const auto& [name, sum] : saved) {
        CHECK(sum.count_nonzero().item<std::int64_t>() > 0);
        CHECK(largest_error(resumed.residuals.at(name), sum) <= kSumBound);
      }
      for (const Trace& trace : resumed.traces) {
        CHECK(trace.losses == resumed.traces.front().losses);
      }
    }
  }
}

TEST_CASE("Runs with and without compression resume from each other's checkpoints") {
  const config::Config plain = laid_out(tiny_config(), 2, 4);
  const config::Config small = laid_out(compressed("powersgd:2"), 2, 4);
  const config::Config other = laid_out(compressed("powersgd:3"), 2, 4);
  for (const auto& [from, to] :
       {std::pair(plain, small), std::pair(small, plain), std::pair(small, other)}) {
    const TempFolder folder;
    (void)train_and_save(from, 2, folder.path("c"));
    CHECK_NOTHROW(load_and_train(to, folder.path("c")));
  }
}

TEST_CASE("Residuals of parameters that are now frozen are dropped") {
  const config::Config config = laid_out(compressed("topk:0.05"), 2, 4);
  const TempFolder folder;
  const Residuals saved = train_and_save(config, 2, folder.path("c"));
  config::Config frozen = config;
  frozen.train.freeze = {"encoder"};
  const Resumed resumed = load_compressed(frozen, folder.path("c"));
  for (const auto& [name, sum] : saved) {
    INFO(name);
    if (name == "encoder") continue;
    CHECK(largest_error(resumed.residuals.at(name), sum) <= kSumBound);
  }
  CHECK_FALSE(resumed.residuals.contains("encoder"));
  CHECK(saved.at("encoder").count_nonzero().item<std::int64_t>() > 0);
}

TEST_CASE("Frozen parameters have no residual under any layout, nor after unfreezing") {
  config::Config config = compressed(GENERATE("topk:0.05", "powersgd:2"));
  config::Config frozen = config;
  frozen.train.freeze = {"encoder"};
  const std::vector<config::Config> saving = layouts(frozen);
  const std::vector<config::Config> loading = layouts(config);
  for (std::size_t index = 0; index < saving.size(); ++index) {
    INFO("layout " << index);
    const TempFolder folder;
    const Residuals saved = train_and_save(saving[index], 2, folder.path("c"));
    CHECK_FALSE(saved.contains("encoder"));
    const Resumed resumed = load_compressed(loading[index], folder.path("c"), frozen.train.freeze);
    CHECK(resumed.residuals.at("encoder").count_nonzero().item<std::int64_t>() == 0);
  }
}

TEST_CASE("Warm-up steps equal those of an uncompressed run") {
  config::Config config = laid_out(tiny_config(), 2, 4);
  const Trace plain = train_on_threads(config).front();
  set(config, "machine.compress", "bf16");
  set(config, "machine.compress_warmup", "2");
  const Trace compressed = train_on_threads(config).front();
  CHECK(compressed.norms[0] == plain.norms[0]);
  CHECK(compressed.norms[1] == plain.norms[1]);
  CHECK(compressed.norms[2] != plain.norms[2]);
}

}  // namespace
}  // namespace dtrain::testing::compression_test
