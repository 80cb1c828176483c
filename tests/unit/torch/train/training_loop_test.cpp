#include "dtrain/train/training_loop.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/engine_run.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::train::training_loop_test {
namespace {

using testing::MemorySource;
using testing::TempFolder;

// The results that one rank of a training run left.
struct RankResult {
  std::string error;  // empty: none
  std::map<std::string, at::Tensor> state;
};

data::Split split_of(const config::Config& config) {
  return data::open_split({.train = config.data.train,
                           .validation = "",
                           .val_fraction = config.data.val_fraction,
                           .seq_len = config.data.seq_len});
}

metrics::Reporter::Options reporter_options(const config::Config& config, std::int64_t rank) {
  return {.writes = rank == 0,
          .metrics_path = config.run.dir + "/metrics.jsonl",
          .console = {},
          .log_every = 0,
          .total_steps = config.train.steps};
}

// Runs the training loop on config.layout.dp ranks that are threads; rank 0 writes into `folder`.
std::vector<RankResult> train_in(const TempFolder& folder, config::Config config,
                                 double peak_flops = 1e12) {
  config.run.dir = folder.path("run");
  std::filesystem::create_directories(config.run.dir);
  config.report.log_every = 0;
  std::vector<RankResult> results(static_cast<std::size_t>(config.layout.dp));
  testing::on_threads(config.layout.dp, [&](comm::World& world) {
    RankResult& result = results[static_cast<std::size_t>(world.rank())];
    const config::Config resolved = testing::with_dtypes(config);
    job::Job job(resolved, {std::shared_ptr<void>(), &world});
    const data::Split split = split_of(config);
    metrics::Reporter reporter(reporter_options(config, world.rank()));
    base::LauncherLink link(-1);
    try {
      const base::HeldFolder run_folder(config.run.dir, base::ErrorKind::checkpoint);
      const auto check_folder = [&] { run_folder.check(); };
      StepClock clock(job.groups());
      StateCheck state_check({.config = resolved,
                              .groups = job.groups(),
                              .world = world.control(),
                              .engine = job.engine(),
                              .split = split,
                              .clock = clock,
                              .are_cpus_mixed = job.cpus().are_mixed});
      Checkpointer checkpoints(job.engine(), job.groups().world(), reporter, link,
                               {.config = resolved,
                                .state_check = state_check,
                                .run = "test",
                                .data_fingerprint = "",
                                .folder = run_folder,
                                .check_folder = check_folder});
      StopRequests requests({});
      const FolderMonitor monitor({});
      TrainingLoop({.config = resolved,
                    .groups = job.groups(),
                    .world = world.control(),
                    .engine = job.engine(),
                    .model = job.whole_model(),
                    .predicted = {.memory = job.plan().memory.total()},
                    .peak_flops = peak_flops,
                    .split = split,
                    .reporter = reporter,
                    .link = link,
                    .clock = clock,
                    .state_check = state_check,
                    .checkpoints = checkpoints,
                    .requests = requests,
                    .check_folder = check_folder,
                    .folder = monitor},
                   {})
          .run();
    } catch (const base::Error& error) {
      result.error = fmt::format("{} {}", base::name_of(error.kind()), error.what());
    }
    result.state = MemorySource(job.engine().whole_model().state()).tensors();
  });
  return results;
}

std::vector<nlohmann::json> metrics_of(const TempFolder& folder) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(folder.read("run/metrics.jsonl"));
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

void check_same_state(const RankResult& found, const RankResult& expected) {
  for (const auto& [name, tensor] : expected.state) {
    INFO(name);
    CHECK(at::equal(found.state.at(name), tensor));
  }
}

// The first update throws the weights so far away that the second loss is not finite.
config::Config diverging(std::int64_t dp) {
  config::Config config = testing::laid_out(testing::tiny_config(), dp, 1);
  config.train.lr = 1e30;
  config.train.steps = 3;
  return config;
}

TEST_CASE("A loss that is not finite stops all ranks at once, before the update") {
  const TempFolder folder;
  const auto results = train_in(folder, diverging(2));
  for (const RankResult& result : results) {
    CHECK(result.error.starts_with("numerics step 2: loss "));
    CHECK(result.error.find("--on-nonfinite skip") != std::string::npos);
  }
  const auto lines = metrics_of(folder);
  REQUIRE(lines.size() == 2);  // step 1 alone, and why there is no other
  CHECK(lines[1]["event"] == "failure");
  CHECK(lines[1]["step"] == 1);
  CHECK_FALSE(std::filesystem::exists(folder.path("run/final/model.safetensors")));
  config::Config one = diverging(2);
  one.train.steps = 1;
  const TempFolder other;
  const auto expected = train_in(other, one);
  for (const RankResult& result : results) check_same_state(result, expected[0]);
}

TEST_CASE(
    "With --on-nonfinite skip, training continues, warns of each step and leaves the weights "
    "alone") {
  const TempFolder folder;
  config::Config config = diverging(2);
  set(config, "train.on_nonfinite", "skip");
  const auto results = train_in(folder, config);
  for (const RankResult& result : results) {  // the weights are as they were, and they are bad
    CHECK_THAT(result.error, testing::Names("numerics", "step 3", "training text"));
  }
  CHECK_FALSE(std::filesystem::exists(folder.path("run/final/model.safetensors")));
  CHECK_FALSE(std::filesystem::exists(folder.path("run/checkpoints")));
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> errors;
  for (const nlohmann::json& line : metrics_of(folder)) {
    if (!line.contains("event")) {
      steps.push_back(line["step"]);
      CHECK(line["loss"].is_string() == (line["step"] > 1));
    } else if (line["event"] == "error") {
      errors.push_back(line["step"]);
      CHECK(line["message"].get<std::string>().find("update skipped") != std::string::npos);
    }
  }
  CHECK(steps == std::vector<std::int64_t>{1, 2, 3});
  CHECK(errors == std::vector<std::int64_t>{2, 3});
  config.train.steps = 1;
  const TempFolder other;
  const auto expected = train_in(other, config);
  for (const RankResult& result : results) check_same_state(result, expected[0]);
  CHECK(results[0].state.at("optimizer.num_updates").item<float>() == 1);
}

TEST_CASE("The loop's steps are the engine's, with the schedule's rate and cumulative counts") {
  const TempFolder folder;
  config::Config config = testing::laid_out(testing::tiny_config(), 2, 2);
  set(config, "train.schedule", "linear");
  config.train.warmup_steps = 2;
  config.train.steps = 4;
  config.report.eval_every = 2;
  set(config, "report.eval_sequences", "3");
  config.data.val_fraction = 0.25;
  const auto results = train_in(folder, config);
  CHECK(results[0].error.empty());
  std::vector<double> rates;
  std::vector<std::int64_t> evaluated;
  for (const nlohmann::json& line : metrics_of(folder)) {
    const std::string event = line.value("event", "");
    if (event == "eval") evaluated.push_back(line["step"]);
    if (!event.empty()) continue;
    rates.push_back(line["learning_rate"]);
    CHECK(line["tokens"] == line["step"].get<std::int64_t>() * 8 * 32);
    CHECK(line["samples"] == line["step"].get<std::int64_t>() * 8);
    CHECK(line["comm_bytes"] > 0);
    CHECK(line["wait_seconds"] <= line["step_seconds"]);
    CHECK(line["mfu"] > 0);
  }
  CHECK(rates == std::vector<double>{0.005, 0.01, 0.01, 0.005});
  CHECK(evaluated == std::vector<std::int64_t>{2, 4});
  CHECK(std::filesystem::exists(folder.path("run/final/model.safetensors")));
}

TEST_CASE("MFU is null after a step exceeds the peak, until a higher one is measured") {
  const TempFolder folder;
  config::Config config = testing::laid_out(testing::tiny_config(), 2, 2);
  config.train.steps = 12;
  (void)train_in(folder, config, /*peak_flops=*/1e3);
  for (const nlohmann::json& line : metrics_of(folder)) {
    if (line.contains("event")) continue;
    INFO(line.dump());
    const bool is_measured_again = line["step"] > 10;
    CHECK(line["mfu"].is_null() != is_measured_again);
    if (is_measured_again) CHECK((line["mfu"] > 0 && line["mfu"] <= 1));
  }
}

TEST_CASE("The loop trains exactly as the engine driven by hand") {
  const TempFolder folder;
  const config::Config config = testing::laid_out(testing::tiny_config(), 2, 2);
  const auto results = train_in(folder, config);
  const testing::Trace trace = testing::train_on_threads(config).front();
  std::size_t step = 0;
  for (const nlohmann::json& line : metrics_of(folder)) {
    if (line.contains("event")) continue;
    CHECK(line["loss"].get<double>() == trace.losses.at(step));
    CHECK(line["grad_norm"].get<double>() == trace.norms.at(step));
    ++step;
  }
  CHECK(step == trace.losses.size());
  for (const auto& [name, tensor] : trace.state) {
    CHECK(at::equal(results[0].state.at(name), tensor));
  }
}

TEST_CASE("Ranks with different settings are refused, naming the first difference") {
  std::vector<std::string> messages(2);
  testing::on_threads(2, [&](comm::World& world) {
    config::Config config = testing::laid_out(testing::tiny_config(), 2, 1);
    if (world.rank() == 1) config.train.lr = 0.5;
    try {
      testing::EngineRun run(config, world);
    } catch (const base::Error& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  CHECK(messages[0].find("train.lr") != std::string::npos);
  CHECK(messages[0].find("0.5") != std::string::npos);
  CHECK(messages[1] == messages[0]);
}

}  // namespace
}  // namespace dtrain::train::training_loop_test
