#include "dtrain/commands/commands.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "dtrain/base/launcher_link.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/commands/internal/layout_choice.h"
#include "dtrain/commands/internal/training_run.h"
#include "dtrain/commands/internal/verifier.h"
#include "dtrain/data/split.h"
#include "dtrain/job/ranks.h"
#include "dtrain/train/text_sampler.h"

namespace dtrain::commands {
namespace {

namespace store = checkpoint::store;

// The settings with which a restart by the launcher continues the earlier attempt that rank 0 finds;
// empty otherwise.
std::optional<config::Config> after_earlier_attempt(comm::ProcessGroup& world,
                                                    const config::Config& config,
                                                    const config::StartRecord& record,
                                                    const base::RankEnv& env) {
  constexpr std::string_view kSaved = "saved ";
  constexpr std::string_view kBegun = "begun ";
  if (env.restart_count == 0) return std::nullopt;
  const std::string found = comm::leader_text(world, "looking for an earlier attempt", [&] {
    const auto earlier = store::find_earlier_attempt(config, record.provenance);
    if (!earlier) return std::string();
    return std::string(earlier->has_checkpoint ? kSaved : kBegun) + earlier->run_dir;
  });
  if (found.empty()) return std::nullopt;
  return store::resume_settings(config, {.run_dir = found.substr(kSaved.size()),
                                         .has_checkpoint = found.starts_with(kSaved)});
}

int train_rank(const config::Config& config, const config::StartRecord& record,
               const base::RankEnv& env, const job::JoinWorld& join) {
  base::LauncherLink link(env.control_fd);
  std::optional<base::LongPhase> phase(std::in_place, link.activity(), "the start");
  const data::Split split = data::open_split(data::split_options(config));
  const auto tokenizer = train::sample_tokenizer(config, split);
  const std::shared_ptr<comm::World> world = join();
  comm::check_agreement(world->control(), {{"the build", build_text(record)}});
  const auto resumed = after_earlier_attempt(world->control(), config, record, env);
  ChosenLayout layout = choose_layout(resumed.value_or(config), record, *world, env);
  choose_microbatch(layout, resumed ? Attempt::later : Attempt::first, *world);
  const RankContext rank{env, link, phase, split, tokenizer, world};
  return TrainingRun(rank, layout).run();
}

void verify_rank(const config::Config& config, const base::RankEnv& env, const job::JoinWorld& join,
                 const Output& output) {
  const base::LauncherLink link(env.control_fd);
  const Verification result = verify(config, join());
  if (env.rank == 0) {
    base::request_plain_output();
    output(result.to_json(config) + "\n");
  }
  if (result.passed()) return;
  const auto worst = std::max_element(
      result.checks.begin(), result.checks.end(),
      [](const Check& a, const Check& b) { return a.error / a.tolerance < b.error / b.tolerance; });
  base::fail(base::ErrorKind::numerics, "{}: {} differs by {:.3g}, beyond the tolerance {:.3g}",
             config.verify.golden + config.verify.hugging_face, worst->name, worst->error,
             worst->tolerance);
}

}  // namespace

std::string build_text(const config::StartRecord& record) {
  const auto program = nlohmann::json::parse(record.provenance);
  return fmt::format("dtrain {} (commit {}), LibTorch {}", program.value("version", "?"),
                     program.value("commit", "?"), TORCH_VERSION);
}

int train(const config::Config& config, const config::StartRecord& record) {
  return job::run_ranks(config, [&](const base::RankEnv& env, const job::JoinWorld& join) {
    return train_rank(config, record, env, join);
  });
}

void verify(const config::Config& config, const Output& output) {
  (void)job::run_ranks(config, [&](const base::RankEnv& env, const job::JoinWorld& join) {
    verify_rank(config, env, join, output);
    return 0;
  });
}

}  // namespace dtrain::commands
