#include "dtrain/train/start_point.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/messages.h"
#include "support/settings.h"

namespace dtrain::train::start_point_test {
namespace {

// A setting that differs: its value now, and in the checkpoint.
struct Difference {
  std::string key;
  std::string now;
  std::string saved;
};

/// Checks that a text names these differences, in this order, and no others.
void check_differences(const std::string& text, const std::vector<Difference>& expected) {
  INFO(text);
  constexpr std::string_view kBetween = "; ";
  std::size_t begin = 0;
  for (const Difference& each : expected) {
    REQUIRE(begin < text.size());
    const std::size_t end = std::min(text.find(kBetween, begin), text.size());
    CHECK_THAT(text.substr(begin, end - begin),
               testing::Names(each.key + " is " + each.now, each.saved));
    begin = end + kBetween.size();
  }
  CHECK(begin >= text.size());
}

struct Change {
  const char* key;
  void (*apply)(config::Config& config);
};

TEST_CASE("A run may not go on with another model, data, seed or batch") {
  const Change change = GENERATE(
      Change{"model.width", [](config::Config& c) { c.model.width = 12; }},
      Change{"model.dropout", [](config::Config& c) { c.model.dropout = 0.25; }},
      Change{"model.tie_levels", [](config::Config& c) { c.model.tie_levels = false; }},
      Change{"data.seq_len", [](config::Config& c) { c.data.seq_len = 7; }},
      Change{"data.val_fraction", [](config::Config& c) { c.data.val_fraction = 0.5; }},
      Change{"train.optimizer", [](config::Config& c) { set(c, "train.optimizer", "sgd"); }},
      Change{"train.seed", [](config::Config& c) { c.train.seed = 77; }},
      Change{"batch.global", [](config::Config& c) { c.batch.global = 99; }});
  config::Config now;
  change.apply(now);
  const Differences found = compare_settings(now, {});
  CHECK_THAT(found.refused, Catch::StartsWith(change.key));
  CHECK(found.noted.empty());
}

TEST_CASE("Steps, layout, machine, reports and paths may differ without a word") {
  config::Config now;
  now.train.steps = 5;
  set(now, "layout.strategy", "ddp");
  now.layout.dp = 4;
  now.layout.nnodes = 2;
  now.machine.threads = 9;
  set(now, "machine.backend", "gloo");
  now.report.log_every = 1;
  now.run.dir = "elsewhere";
  now.data.train = "moved.txt";
  set(now, "checkpoint.every", "7");
  now.batch.grad_accum = 3;
  const Differences found = compare_settings(now, {});
  CHECK(found.refused.empty());
  CHECK(found.noted.empty());
}

TEST_CASE("Steps and decay steps are noted where the rate follows them") {
  config::Config saved;
  saved.train.steps = 1000;
  set(saved, "train.schedule", "wsd");
  saved.train.decay_steps = 100;
  config::Config now = saved;
  now.train.steps = 2000;
  now.train.decay_steps = 200;
  check_differences(compare_settings(now, saved).noted,
                    {{"train.steps", "2000", "1000"}, {"train.decay_steps", "200", "100"}});
  set(now, "train.schedule", "constant");
  check_differences(compare_settings(now, saved).noted, {{"train.schedule", "constant", "wsd"}});
  for (config::Config* config : {&now, &saved}) set(*config, "train.schedule", "cosine");
  check_differences(compare_settings(now, saved).noted, {{"train.steps", "2000", "1000"}});
}

TEST_CASE("Norms are on another level where gradients are compressed in another way") {
  config::Config saved;
  saved.layout.dp = 4;
  saved.layout.shard_size = 1;
  config::Config now = saved;
  now.layout.dp = 2;
  now.machine.compress_warmup = 5;
  CHECK(have_equal_norms(now, saved));  // nothing is compressed
  set(saved, "machine.compress", "topk:0.01");
  CHECK_FALSE(have_equal_norms(now, saved));
  CHECK(have_equal_norms(saved, saved));
  for (const auto change : {+[](config::Config& c) { c.layout.dp = 2; },
                            +[](config::Config& c) { c.machine.compress_warmup = 5; },
                            +[](config::Config& c) { c.machine.compress_min_elements = 5; },
                            +[](config::Config& c) { set(c, "machine.compress", "bf16"); },
                            +[](config::Config& c) { set(c, "machine.compress", "none"); }}) {
    now = saved;
    change(now);
    CHECK_FALSE(have_equal_norms(now, saved));
    CHECK_FALSE(have_equal_norms(saved, now));
  }
}

TEST_CASE("Settings of an optimizer that is not in use may differ without a word") {
  config::Config saved;
  config::Config now;
  now.train.momentum = 0.5;
  CHECK(compare_settings(now, saved).noted.empty());
  for (config::Config* config : {&now, &saved}) set(*config, "train.optimizer", "sgd");
  now.train.beta1 = now.train.beta2 = now.train.eps = 0.5;
  check_differences(compare_settings(now, saved).noted, {{"train.momentum", "0.5", "0.9"}});
  saved.train.momentum = 0;  // its checkpoint has no momentum to go on with
  check_differences(compare_settings(now, saved).refused, {{"train.momentum", "0.5", "0"}});
}

TEST_CASE("What changes later numbers is noted with both values") {
  config::Config now;
  now.train.lr = 0.5;
  set(now, "train.schedule", "linear");
  now.train.steps = 5;
  now.batch.microbatch = 2;
  set(now, "machine.dtype", "float64");
  config::Config saved;
  saved.train.steps = 1000;
  saved.train.lr = 0.001;
  const Differences found = compare_settings(now, saved);
  CHECK(found.refused.empty());
  check_differences(found.noted, {{"batch.microbatch", "2", "0"},
                                  {"train.steps", "5", "1000"},
                                  {"train.lr", "0.5", "0.001"},
                                  {"train.schedule", "linear", "constant"},
                                  {"machine.dtype", "float64", "float32"}});
}

}  // namespace
}  // namespace dtrain::train::start_point_test
