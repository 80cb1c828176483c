#include "dtrain/train/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/launcher_link.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/comm/agreement.h"
#include "dtrain/comm/leader.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/train/job.h"
#include "dtrain/train/start_table.h"
#include "dtrain/train/trainer.h"
#include "dtrain/train/verifier.h"

namespace dtrain::train {
namespace {

metrics::Reporter make_reporter(const config::Config& config, const base::RankEnv& env) {
  const bool live = env.launcher_terminal || ::isatty(STDERR_FILENO) == 1;
  return metrics::Reporter(
      {.writes = env.rank == 0,
       .metrics_path = (std::filesystem::path(config.run.dir) / "metrics.jsonl").string(),
       .console = {.live = live, .columns = env.terminal_columns},
       .log_every = config.report.log_every,
       .total_steps = config.train.steps});
}

data::Split open_data(const config::Config& config) {
  return data::open_split({.train = config.data.train,
                           .validation = config.data.validation,
                           .val_fraction = config.data.val_fraction,
                           .seq_len = config.data.seq_len,
                           .vocab = config.model.vocab});
}

// What ranks must agree on besides settings: equal paths may hold different files on different
// machines.
std::vector<comm::NamedValue> data_facts(const data::Split& split) {
  const auto describe = [](const data::Samples& samples) {
    return fmt::format("{} samples, fingerprint {:016x}", samples.size(), samples.fingerprint());
  };
  return {{"the training data", describe(split.train)},
          {"the validation data", describe(split.validation)}};
}

}  // namespace

void train(const config::Config& config) {
  const base::RankEnv env = base::rank_env_of_process();
  base::LauncherLink link(env.control_fd);
  const data::Split split = open_data(config);
  Job job(config, make_world(config, env));
  comm::check_agreement(job.groups().world(), data_facts(split));
  comm::on_leader(job.groups().world(), "preparing the run folder",
                  [&] { config::claim_run_folder(config); });
  metrics::Reporter reporter = make_reporter(config, env);
  reporter.start(start_table(job, split), start_fields(job, split));
  Trainer(job, split, reporter, link).run();
}

void verify(const config::Config& config, const Output& output) {
  const base::RankEnv env = base::rank_env_of_process();
  const base::LauncherLink link(env.control_fd);
  const Verification result = verify(config, make_world(config, env));
  if (env.rank == 0) output(result.to_json(config) + "\n");
  if (result.passed()) return;
  const auto worst = std::max_element(
      result.checks.begin(), result.checks.end(),
      [](const Check& a, const Check& b) { return a.error / a.tolerance < b.error / b.tolerance; });
  base::fail(base::ErrorKind::numerics, "{}: {} differs by {:.3g}, beyond the tolerance {:.3g}",
             config.verify.golden, worst->name, worst->error, worst->tolerance);
}

}  // namespace dtrain::train
