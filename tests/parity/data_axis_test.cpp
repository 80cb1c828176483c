// Promise 1: the layout is a matter of speed and memory, never of results (docs/determinism.md).
//
// scripts/soak_mutations.py plants defects in who reads, adds and reduces what; a test of this file
// or of naive_test.cpp notices each.
#include <catch2/catch.hpp>

#include "dtrain/config/json.h"
#include "support/engine_run.h"
#include "support/local_ranks.h"

namespace dtrain::testing {
namespace {

// Only what a rank computes may be compared: all ranks are to agree first.
std::string text_of_all(const config::Config& config) {
  const std::vector<Trace> traces = train_on_threads(config);
  const std::string text = traces.front().text();
  for (const Trace& trace : traces) CHECK(trace.text() == text);
  return text;
}

const RankProgram kTrain("train", [](comm::World& world, const std::string& request) {
  const config::Config config = config::from_request(request).config;
  EngineRun run(config, world);
  run.steps(config.train.steps);
  return run.trace().text();
});

void check_equal_layouts(const config::Config& config) {
  const std::string single = text_of_all(laid_out(config, 1, 8));
  for (const std::int64_t dp : {2, 4, 8}) {
    INFO("dp " << dp);
    CHECK(text_of_all(laid_out(config, dp, 8 / dp)) == single);
  }
}

TEST_CASE("1, 2, 4 and 8 ranks give equal bits in every loss, norm, weight and moment") {
  config::Config config = tiny_config();
  config.machine.dtype = GENERATE("float32", "float64");
  config.model.tie_levels = GENERATE(true, false);
  INFO(config.machine.dtype << ", tied levels " << config.model.tie_levels);
  check_equal_layouts(config);
}

TEST_CASE("Accumulation of 1, 2 and 4 microbatches of two samples gives equal bits on any ranks") {
  const config::Config config = tiny_config();
  const std::string single = text_of_all(laid_out(config, 1, 4));
  CHECK(text_of_all(laid_out(config, 2, 2)) == single);
  CHECK(text_of_all(laid_out(config, 4, 1)) == single);
  // Another microbatch is another bitwise class, which shows that the comparison can fail.
  CHECK(text_of_all(laid_out(config, 1, 8)) != single);
}

TEST_CASE("Several buckets give the bits of one rank") {
  config::Config config = tiny_config();
  config.model = {.levels = 2, .width = 32, .heads = 2, .neurons = 8192, .dropout = 0.1};
  config.data.seq_len = 16;
  config.batch.global = 4;
  config.train.steps = 2;
  // 1.6 million parameters: two buckets of 4 MiB.
  CHECK(text_of_all(laid_out(config, 4, 1)) == text_of_all(laid_out(config, 1, 4)));
}

TEST_CASE("Two processes over gloo and over shm give the bits of one rank") {
  config::Config config = tiny_config();
  config.machine.dtype = GENERATE("float32", "float64");
  const std::string backend = GENERATE("gloo", "shm");
  const std::string single = text_of_all(laid_out(config, 1, 4));
  const config::Config two = laid_out(config, 2, 2);
  const auto outcomes =
      on_processes("train", {.size = 2,
                             .argument = config::to_request({config::Command::train, two}),
                             .backend = backend});
  for (const RankOutcome& outcome : outcomes) {
    CHECK(outcome.status == 0);
    CHECK(outcome.text == single);
  }
}

TEST_CASE("A frozen parameter keeps its initial bits and the layouts stay equal") {
  config::Config config = tiny_config();
  config.train.freeze = {"encoder", "embed.weight"};
  check_equal_layouts(config);
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
  CHECK(trace.norms.front() < free.norms.front());  // without the frozen gradients
}

// M = 2^k * q microbatches are summed in groups of q, then by the tree: bits stay equal where the
// ranks own whole groups.
TEST_CASE("Three ranks equal three microbatches, two ranks of three equal six, bit by bit") {
  config::Config config = tiny_config();
  config.batch.global = 6;
  CHECK(text_of_all(laid_out(config, 3, 1)) == text_of_all(laid_out(config, 1, 3)));
  CHECK(text_of_all(laid_out(config, 2, 3)) == text_of_all(laid_out(config, 1, 6)));
}

TEST_CASE("Counts that cut a group of the sum agree to rounding in float64") {
  config::Config config = tiny_config();
  config.machine.dtype = "float64";
  config.batch.global = 6;
  const Trace single = train_on_threads(laid_out(config, 1, 6)).front();
  const Trace three = train_on_threads(laid_out(config, 3, 2)).front();
  const Trace six = train_on_threads(laid_out(config, 6, 1)).front();
  for (const Trace& trace : {three, six}) {
    for (std::size_t step = 0; step < single.losses.size(); ++step) {
      CHECK(trace.losses[step] == Approx(single.losses[step]).epsilon(1e-12));
      CHECK(trace.norms[step] == Approx(single.norms[step]).epsilon(1e-10));
    }
    for (const auto& [name, value] : single.state) {
      INFO(name);
      CHECK(largest_error(trace.state.at(name), value) < 1e-9);
    }
  }
}

TEST_CASE("Fast reduction agrees with the ordered one to rounding") {
  config::Config config = laid_out(tiny_config(), 2, 2);
  config.machine.dtype = "float64";
  const Trace ordered = train_on_threads(config).front();
  config.machine.reduction = "fast";
  const std::vector<Trace> fast = train_on_threads(config);
  CHECK(fast[0].text() == fast[1].text());  // ranks never drift apart
  for (const auto& [name, value] : ordered.state) {
    INFO(name);
    CHECK(largest_error(fast[0].state.at(name), value) < 1e-9);
  }
}

}  // namespace
}  // namespace dtrain::testing
