#include "dtrain/train/internal/setting_changes.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/config/bdh/settings.h"
#include "support/messages.h"
#include "support/settings.h"

namespace dtrain::train::setting_changes_test {
namespace {

using config::OnResume;

/// Checks which settings differ, with their values and in this order.
void check_changes(const std::vector<SettingChange>& found,
                   const std::vector<SettingChange>& expected) {
  INFO(table_of(found));
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].name == expected[i].name);
    CHECK(found[i].saved == expected[i].saved);
    CHECK(found[i].now == expected[i].now);
    CHECK(found[i].rule == expected[i].rule);
  }
}

std::vector<SettingChange> noted(const config::Config& now, const config::Config& saved) {
  std::vector<SettingChange> changes = setting_changes(now, saved);
  std::erase_if(changes, [](const auto& change) { return change.rule != OnResume::reported; });
  return changes;
}

struct Change {
  const char* key;
  void (*apply)(config::Config& config);
};

TEST_CASE("A resumed run may not change model, data, seed or batch") {
  const Change change = GENERATE(
      Change{"model.width", [](config::Config& c) { c.model.width = 12; }},
      Change{"model.dropout", [](config::Config& c) { c.model.dropout = 0.25; }},
      Change{"model.tie_layers",
             [](config::Config& c) { config::bdh::settings_of(c.model).tie_layers = false; }},
      Change{"data.seq_len", [](config::Config& c) { c.data.seq_len = 7; }},
      Change{"data.val_fraction", [](config::Config& c) { c.data.val_fraction = 0.5; }},
      Change{"train.optimizer", [](config::Config& c) { set(c, "train.optimizer", "sgd"); }},
      Change{"train.seed", [](config::Config& c) { c.train.seed = 77; }},
      Change{"batch.global", [](config::Config& c) { c.batch.global = 99; }});
  config::Config now;
  change.apply(now);
  const Refusal refusal = refusal_of(setting_changes(now, {}), /*has_new_data=*/false);
  CHECK_THAT(refusal.changes, Catch::StartsWith(change.key));
}

TEST_CASE("A resumed run may not change the settings of its family, which alone are compared") {
  config::Config saved;
  set(saved, "model.name", "gpt2");
  config::Config now = saved;
  set(now, "model.neurons", "64");
  CHECK(setting_changes(now, saved).empty());
  set(now, "model.learned_positions", "512");
  const Refusal refusal = refusal_of(setting_changes(now, saved), /*has_new_data=*/true);
  CHECK_THAT(refusal.changes, testing::Names("model.learned_positions", 512, 1024));
}

struct Size {
  const char* family;
  const char* key;
  const char* derived;
  const char* other;
};

TEST_CASE("A size that follows from others may be given when a run resumes") {
  const Size size = GENERATE(Size{"gpt2", "model.inner_size", "256", "128"},
                             Size{"llama", "model.intermediate_size", "192", "128"},
                             Size{"llama", "model.head_dim", "16", "32"},
                             Size{"llama", "model.kv_heads", "4", "2"});
  config::Config saved;
  set(saved, "model.name", size.family);
  config::Config now = saved;
  set(now, size.key, size.derived);
  CHECK(setting_changes(now, saved).empty());
  CHECK(setting_changes(saved, now).empty());
  set(now, size.key, size.other);
  check_changes(setting_changes(now, saved),
                {{size.key, size.derived, size.other, OnResume::fixed}});
}

TEST_CASE("New data allows another seed, batch, sequence length and validation fraction") {
  config::Config now;
  now.data.seq_len = 7;
  now.data.val_fraction = 0.5;
  now.train.seed = 77;
  now.batch.global = 99;
  const Refusal without = refusal_of(setting_changes(now, {}), /*has_new_data=*/false);
  CHECK_THAT(without.changes,
             testing::Names("data.seq_len", "data.val_fraction", "train.seed", "batch.global"));
  CHECK(without.needs_new_data);
  CHECK(refusal_of(setting_changes(now, {}), /*has_new_data=*/true).changes.empty());
  now.model.width = 12;
  CHECK_FALSE(refusal_of(setting_changes(now, {}), /*has_new_data=*/false).needs_new_data);
  CHECK_THAT(refusal_of(setting_changes(now, {}), /*has_new_data=*/true).changes,
             Catch::StartsWith("model.width"));
}

TEST_CASE("Steps, layout, machine and reports may change without a warning") {
  config::Config saved;
  set(saved, "train.schedule", "constant");
  set(saved, "machine.kernels", "fused");
  config::Config now = saved;
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
  now.checkpoint.new_data = true;
  const auto changes = setting_changes(now, saved);
  CHECK(changes.size() == 9);  // not those of the start, nor the files of data
  CHECK_FALSE(changes_results(changes));
  CHECK(refusal_of(changes, /*has_new_data=*/false).changes.empty());
}

TEST_CASE("Another number of threads is noted where kernels add in its order") {
  config::Config saved;
  set(saved, "machine.kernels", "fused");
  config::Config now = saved;
  now.machine.threads = 9;
  CHECK_FALSE(changes_results(setting_changes(now, saved)));
  for (config::Config* config : {&saved, &now}) set(*config, "machine.kernels", "plain");
  CHECK(changes_results(setting_changes(now, saved)));
  for (config::Config* config : {&saved, &now}) {
    set(*config, "machine.kernels", "fused");
    set(*config, "model.name", "gpt2");
  }
  check_changes(noted(now, saved), {{"machine.threads", "0", "9"}});
}

TEST_CASE("The table begins with the learning rate and aligns old and new values") {
  config::Config saved;
  set(saved, "train.schedule", "constant");
  saved.train.lr = 0.001;
  saved.train.min_lr = 0.0;
  saved.train.warmup_steps = 0;
  config::Config now = saved;
  now.model.dropout = 0.25;
  now.train.lr = 0.5;
  now.train.freeze = {"lm_head"};
  const auto changes = setting_changes(now, saved);
  check_changes(changes, {{"train.lr", "0.001", "0.5"},
                          {"model.dropout", "0.1", "0.25", OnResume::fixed},
                          {"train.freeze", "", "lm_head"}});
  CHECK(table_of(changes) ==
        "                 checkpoint  now\n"
        "  train.lr       0.001       0.5\n"
        "  model.dropout  0.1         0.25\n"
        "  train.freeze   -           lm_head");
  saved.train.steps = now.train.steps = 10;
  const auto rate = rate_change(now.train, saved.train, 4);
  REQUIRE(rate.size() == 1);
  CHECK_THAT(rate.front().saved, testing::Names("0.001", "step 5"));
  CHECK_THAT(rate.front().now, testing::Names("0.5", "step 5"));
  CHECK(rate_change(saved.train, saved.train, 4).empty());
  CHECK(rate_change(now.train, saved.train, 10).empty());  // no step follows
  now.train.lr = 0.001 + 1e-9;
  CHECK(rate_change(now.train, saved.train, 4).empty());  // equal to three digits
}

TEST_CASE("A run with more steps is shown both learning rates of its next step") {
  config::Config saved;
  set(saved, "train.schedule", "wsd");
  saved.train.lr = 0.001;
  saved.train.min_lr = 0.0001;
  saved.train.warmup_steps = 0;
  saved.train.decay_steps = 1;
  saved.train.steps = 4;
  config::Config now = saved;
  now.train.steps = 6;
  CHECK(rate_change(now.train, saved.train, 2).empty());  // both are before the decay
  const auto rate = rate_change(now.train, saved.train, 4);
  REQUIRE(rate.size() == 1);
  CHECK_THAT(rate.front().saved, testing::Names("0.0001", "step 5"));
  CHECK_THAT(rate.front().now, testing::Names("0.001", "step 5"));
}

TEST_CASE("Changed steps and decay steps are listed if the learning rate depends on them") {
  config::Config saved;
  saved.train.steps = 1000;
  set(saved, "train.schedule", "wsd");
  saved.train.decay_steps = 100;
  config::Config now = saved;
  now.train.steps = 2000;
  now.train.decay_steps = 200;
  check_changes(noted(now, saved),
                {{"train.steps", "1000", "2000"}, {"train.decay_steps", "100", "200"}});
  set(now, "train.schedule", "constant");
  check_changes(noted(now, saved), {{"train.schedule", "wsd", "constant"}});
  for (config::Config* config : {&now, &saved}) set(*config, "train.schedule", "cosine");
  check_changes(noted(now, saved), {{"train.steps", "1000", "2000"}});
}

TEST_CASE("Norms have another level if compression changes") {
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

TEST_CASE("Settings of an unused optimizer may change without a warning") {
  config::Config saved;
  config::Config now;
  now.train.momentum = 0.5;
  CHECK(noted(now, saved).empty());
  for (config::Config* config : {&now, &saved}) set(*config, "train.optimizer", "sgd");
  now.train.beta1 = now.train.beta2 = now.train.eps = 0.5;
  check_changes(noted(now, saved), {{"train.momentum", "0.9", "0.5"}});
  saved.train.momentum = 0;  // its checkpoint has no momentum to go on with
  CHECK_THAT(refusal_of(setting_changes(now, saved), /*has_new_data=*/true).changes,
             testing::Names("train.momentum", "0.5", "0"));
}

TEST_CASE("Settings that change results are listed with both values") {
  config::Config now;
  now.train.lr = 0.5;
  set(now, "train.schedule", "linear");
  now.train.steps = 5;
  now.batch.microbatch = 2;
  set(now, "machine.dtype", "float64");
  config::Config saved;
  saved.train.steps = 1000;
  saved.train.lr = 0.001;
  check_changes(setting_changes(now, saved), {{"train.lr", "0.001", "0.5"},
                                              {"batch.microbatch", "0", "2"},
                                              {"train.steps", "1000", "5"},
                                              {"train.schedule", "wsd", "linear"},
                                              {"machine.dtype", "float32", "float64"}});
}

}  // namespace
}  // namespace dtrain::train::setting_changes_test
