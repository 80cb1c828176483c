// Promise 1: the layout affects speed and memory, never results (docs/guide/determinism.md).
//
// scripts/soak/soak_mutations.py plants defects in reading, accumulation and reduction, and names the
// program whose tests catch each.
#include <catch2/catch.hpp>
#include <filesystem>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/layout.h"
#include "support/engine_run.h"
#include "support/oracles/rounding.h"
#include "support/oracles/sensitivity.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/temp_folder.h"
#include "support/values.h"

namespace dtrain::testing::data_axis_test {
namespace {

// Checks that all ranks agree before comparing one of them.
std::string text_of_all(const config::Config& config) {
  const std::vector<Trace> traces = train_on_threads(config);
  const std::string text = traces.front().text();
  for (const Trace& trace : traces) CHECK(trace.text() == text);
  return text;
}

void check_equal_layouts(const config::Config& config) {
  const std::string single = text_of_all(laid_out(config, 1, 8));
  for (const std::int64_t dp : {2, 4, 8}) {
    INFO("dp " << dp);
    CHECK(text_of_all(laid_out(config, dp, 8 / dp)) == single);
  }
}

TEST_CASE("1, 2, 4 and 8 ranks give equal bits in every loss, norm, weight and moment") {
  config::Config config = tiny_config();
  set(config, "machine.dtype", GENERATE("float32", "float64"));
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  INFO(config.machine.dtype << ", tied levels "
                            << config::bdh::settings_of(config.model).tie_layers);
  check_equal_layouts(config);
}

TEST_CASE("Accumulation of 1, 2 and 4 microbatches of two samples gives equal bits on any ranks") {
  const config::Config config = tiny_config();
  const std::string single = text_of_all(laid_out(config, 1, 4));
  CHECK(text_of_all(laid_out(config, 2, 2)) == single);
  CHECK(text_of_all(laid_out(config, 4, 1)) == single);
  // A different microbatch is a different reproducibility class, which shows that the comparison
  // can fail.
  CHECK(text_of_all(laid_out(config, 1, 8)) != single);
}

TEST_CASE("Several buckets give the bits of one rank") {
  config::Config config = tiny_config();
  config.model = {.layers = 2,
                  .width = 32,
                  .heads = 2,
                  .family = config::bdh::Settings{.neurons = 8192},
                  .dropout = 0.1};
  config.data.seq_len = 16;
  config.batch.global = 4;
  config.train.steps = 2;
  // 1.6 million parameters: two buckets of 4 MiB.
  CHECK(text_of_all(laid_out(config, 4, 1)) == text_of_all(laid_out(config, 1, 4)));
}

TEST_CASE("Two processes over gloo and over shm give the bits of one rank") {
  const auto [what, dtype, backend] = GENERATE(
      table<std::string, std::string, std::string>({{"fsdp:none", "float32", "gloo"},
                                                    {"fsdp:none", "float64", "gloo"},
                                                    {"fsdp:none", "float32", "shm"},
                                                    {"fsdp:none", "float64", "shm"},
                                                    {"fsdp:full", "float32", "gloo"},
                                                    {"zero:1", "float32", "gloo"},
                                                    {"fsdp:full+local", "float32", "gloo"}}));
  CAPTURE(what, dtype, backend);
  config::Config config = tiny_config();
  set(config, "machine.dtype", dtype);
  const std::string single = text_of_all(laid_out(config, 1, 4));
  for (const RankOutcome& outcome : train_on_processes(sharded(config, 2, 2, what), backend)) {
    CHECK(outcome.status == 0);
    CHECK(outcome.text == single);
  }
}

// M = 2^k * q microbatches are summed in groups of q, then by the tree. Bits stay equal if ranks
// first sum whole groups, and their number is a power of two.
TEST_CASE("Three ranks equal three microbatches, two ranks of three equal six, bit by bit") {
  config::Config config = tiny_config();
  config.batch.global = 6;
  CHECK(text_of_all(laid_out(config, 3, 1)) == text_of_all(laid_out(config, 1, 3)));
  CHECK(text_of_all(laid_out(config, 2, 3)) == text_of_all(laid_out(config, 1, 6)));
}

TEST_CASE("Counts other than powers of two have the bits of one rank if they keep its order") {
  struct Layout {
    std::int64_t dp;
    std::int64_t grad_accum;
    const char* what;
  };
  config::Config config = tiny_config();
  config.batch.global = 12;
  const std::string six = text_of_all(laid_out(config, 1, 6));
  const std::string twelve = text_of_all(laid_out(config, 1, 12));
  std::int64_t kept = 0;
  for (const Layout& layout : {Layout{2, 3, "fsdp:full"},
                               {2, 3, "fsdp:full+local"},
                               {2, 3, "zero:2"},
                               {3, 2, "fsdp:full"},
                               {6, 1, "fsdp:full"},
                               {6, 1, "hybrid:2"},
                               {4, 3, "hybrid:2"},
                               {4, 3, "hybrid:2+local"}}) {
    INFO(layout.what << " on " << layout.dp << " x " << layout.grad_accum);
    const config::Config found = sharded(config, layout.dp, layout.grad_accum, layout.what);
    const std::string& single = layout.dp * layout.grad_accum == 6 ? six : twelve;
    const bool keeps = config::matches_single_rank_order(found.layout, layout.grad_accum);
    CHECK((text_of_all(found) == single) == keeps);
    kept += keeps ? 1 : 0;
  }
  CHECK(kept == 4);
}

TEST_CASE("Counts that split a group of the sum agree to rounding in float64") {
  config::Config config = tiny_config();
  set(config, "machine.dtype", "float64");
  config.batch.global = 6;
  const Trace single = train_on_threads(laid_out(config, 1, 6)).front();
  const Trace three = train_on_threads(laid_out(config, 3, 2)).front();
  const Trace six = train_on_threads(laid_out(config, 6, 1)).front();
  const TraceBound bound = rounding_bound_of(laid_out(config, 1, 1), at::kDouble);
  check_near(three, single, bound);
  check_near(six, single, bound);
}

TEST_CASE("Fast reduction agrees with the ordered one to rounding") {
  config::Config config = laid_out(tiny_config(), 2, 2);
  set(config, "machine.dtype", "float64");
  const Trace ordered = train_on_threads(config).front();
  set(config, "machine.reduction", "fast");
  const std::vector<Trace> fast = train_on_threads(config);
  CHECK(fast[0].text() == fast[1].text());  // ranks never diverge
  const TraceBound bound = rounding_bound_of(laid_out(tiny_config(), 1, 1), at::kDouble);
  check_near(fast[0], ordered, bound);
}

// Checks that each of these shardings gives the text of one rank.
void check_sharded(const std::string& single, const config::Config& config, std::int64_t dp,
                   std::int64_t grad_accum, const std::vector<std::string>& shardings) {
  for (const std::string& what : shardings) {
    INFO(what << " on " << dp);
    CHECK(text_of_all(sharded(config, dp, grad_accum, what)) == single);
  }
}

const std::vector<std::string> kShardings{"fsdp:full", "fsdp:grad-op", "fsdp:none",
                                          "zero:1",    "zero:2",       "zero:3"};
const std::vector<std::string> kSomeShardings{"fsdp:none", "fsdp:full", "zero:1", "zero:2",
                                              "hybrid:2"};

TEST_CASE("Every sharding gives the bits of one rank on 2, 4 and 8 ranks") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  INFO("tied levels " << config::bdh::settings_of(config.model).tie_layers);
  const std::string single = text_of_all(laid_out(config, 1, 8));
  for (const std::int64_t dp : {2, 4, 8}) check_sharded(single, config, dp, 8 / dp, kShardings);
}

TEST_CASE("Gradients accumulated in full and sharded at the end have the bits of one rank") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  const std::string single = text_of_all(laid_out(config, 1, 8));
  for (const std::int64_t dp : {2, 4}) {
    check_sharded(single, config, dp, 8 / dp,
                  {"fsdp:full+local", "fsdp:grad-op+local", "zero:2+local"});
  }
}

TEST_CASE("Hybrid sharding gives the bits of one rank") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  const std::string single = text_of_all(laid_out(config, 1, 8));
  check_sharded(single, config, 4, 2, {"hybrid:1", "hybrid:2", "hybrid:4", "hybrid:2+local"});
  check_sharded(single, config, 8, 1, {"hybrid:2", "hybrid:4"});
}

TEST_CASE("Units of any size give the bits of one rank") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = false;
  const std::string single = text_of_all(laid_out(config, 1, 8));
  for (const std::string wrap : {"none", "size:1", "size:5000"}) {
    INFO(wrap);
    set(config, "layout.wrap", wrap);
    CHECK(text_of_all(sharded(config, 4, 2, "fsdp:full")) == single);
  }
}

TEST_CASE("Prefetching and its limit change no bit") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = false;
  const std::string single = text_of_all(laid_out(config, 1, 4));
  for (const std::string mode : {"pre", "post", "none"}) {
    for (const std::int64_t limit : {1, 2, 4}) {
      set(config, "layout.backward_prefetch", mode);
      config.layout.forward_prefetch = limit > 1;
      config.layout.limit_gathers = limit;
      INFO(mode << ", limit " << limit);
      CHECK(text_of_all(sharded(config, 2, 2, "fsdp:full")) == single);
    }
  }
}

TEST_CASE("Recomputed blocks have the bits of blocks that keep their graphs") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  set(config, "machine.dtype", GENERATE("float32", "bfloat16"));
  INFO("tied levels " << config::bdh::settings_of(config.model).tie_layers << ", "
                      << config.machine.dtype);
  const std::string single = text_of_all(laid_out(config, 1, 4));
  for (const std::string recompute : {"level", "every:2", "every:3"}) {
    INFO(recompute);
    set(config, "machine.recompute", recompute);
    CHECK(text_of_all(laid_out(config, 1, 4)) == single);
    check_sharded(single, config, 2, 2, {"fsdp:full", "fsdp:grad-op", "zero:1", "fsdp:full+local"});
  }
  set(config, "machine.recompute", "every:2");
  config.layout.limit_gathers = 1;
  set(config, "layout.backward_prefetch", "post");
  CHECK(text_of_all(sharded(config, 4, 1, "fsdp:full")) == single);
}

TEST_CASE("SGD with momentum has the bits of one rank under every sharding") {
  config::Config config = tiny_config();
  set(config, "train.optimizer", "sgd");
  config.train.lr = 0.5;
  const Trace single = train_on_threads(laid_out(config, 1, 8)).front();
  CHECK(single.state.contains("optimizer.momentum_buffer.encoder"));
  check_sharded(single.text(), config, 4, 2, kShardings);
  config.train.momentum = 0.5;
  CHECK(train_on_threads(laid_out(config, 1, 8)).front().text() != single.text());
}

TEST_CASE("A frozen parameter keeps its initial bits and all layouts stay equal") {
  config::Config config = tiny_config();
  config.train.freeze = {"encoder", "embed.weight"};
  check_equal_layouts(config);
  check_sharded(text_of_all(laid_out(config, 1, 8)), config, 4, 2, kShardings);
  const Trace trace = train_on_threads(laid_out(config, 2, 1)).front();
  config.train.steps = 0;
  const Trace start = train_on_threads(laid_out(config, 2, 1)).front();
  const Trace free = train_on_threads(laid_out(tiny_config(), 2, 1)).front();
  for (const std::string name : {"model.encoder", "model.embed.weight"}) {
    INFO(name);
    CHECK(at::equal(trace.state.at(name), start.state.at(name)));
    CHECK_FALSE(at::equal(free.state.at(name), start.state.at(name)));
  }
  CHECK_FALSE(at::equal(trace.state.at("model.decoder"), start.state.at("model.decoder")));
  CHECK(trace.norms.front() < free.norms.front());  // excludes the frozen gradients
}

// At tiny_config's learning rate, ten times as high, training is chaotic: rounding does not bound
// the loss.
constexpr double kCalmRate = 1e-3;

// One rank's losses.
std::vector<double> losses_in(config::Config config, const std::string& dtype) {
  set(config, "machine.dtype", dtype);
  return train_on_threads(laid_out(config, 1, 8)).front().losses;
}

TEST_CASE(
    "In 16-bit formats every layout has the bits of one rank, and losses to their precision") {
  config::Config config = tiny_config();
  config.train.steps = 12;
  config.train.lr = kCalmRate;
  const std::string dtype = GENERATE("bfloat16", "float16");
  const std::vector<double> exact = losses_in(config, "float64");
  const TraceBound bound = rounding_bound_of(config, scalar_type_of(dtype));
  CHECK(losses_in(config, dtype).front() != losses_in(config, "float32").front());
  set(config, "machine.dtype", dtype);
  const config::Config alone = sharded(config, 1, 8, "fsdp:none");
  const Trace single = train_on_threads(alone).front();
  check_sharded(single.text(), config, 4, 2, kSomeShardings);
  // float16 skips its first updates until the loss scale fits.
  const std::size_t steps = config.machine.dtype == config::Dtype::float16 ? 1 : exact.size();
  for (std::size_t step = 0; step < steps; ++step) {
    INFO("step " << step);
    CHECK(std::abs(single.losses[step] - exact[step]) <= bound.losses[step]);
  }
  CHECK(bound.losses.back() < 0.1);
  CHECK(single.losses.back() < exact.front() - 0.1);
}

// Each gradient is rounded before two ranks add it, and their sum once more: fewer roundings than a
// run in that format has.
TEST_CASE("Gradients reduced in 16 bits stay close to those that are not") {
  config::Config config = tiny_config();
  config.train.lr = kCalmRate;
  const Trace wide = train_on_threads(laid_out(config, 2, 2)).front();
  const std::string dtype = GENERATE("bfloat16", "float16");
  const TraceBound bound = rounding_bound_of(config, scalar_type_of(dtype));
  set(config, "machine.reduce_dtype", dtype);
  for (const std::string what : {"fsdp:none", "fsdp:full", "zero:1"}) {
    INFO(config.machine.reduce_dtype << " " << what);
    const std::vector<Trace> found = train_on_threads(sharded(config, 2, 2, what));
    CHECK(found[0].text() == found[1].text());
    CHECK(found[0].norms[0] != wide.norms[0]);
    CHECK(std::abs(found[0].norms[0] / wide.norms[0] - 1) <=
          rounding_bound(scalar_type_of(dtype), 3));
    CHECK(std::abs(found[0].losses.back() - wide.losses.back()) <= bound.losses.back());
    CHECK(bound.losses.back() < 0.1);
  }
}

TEST_CASE("Masters and moments on disk give the same bits as in memory") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  const std::string single = text_of_all(laid_out(config, 1, 8));
  const TempFolder folder;
  set(config, "machine.offload", "disk:" + folder.path(""));
  CHECK(text_of_all(laid_out(config, 1, 8)) == single);
  check_sharded(single, config, 4, 2, kSomeShardings);
  CHECK(std::filesystem::is_empty(folder.path("")));
}

}  // namespace
}  // namespace dtrain::testing::data_axis_test
