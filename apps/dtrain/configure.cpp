#include "configure.h"

#include "dtrain/base/error.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/base/log.h"
#include "dtrain/config/command_line.h"
#include "dtrain/config/continued_run.h"
#include "dtrain/config/json.h"
#include "dtrain/config/resolve.h"
#include "help.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;

config::Launch launch_of(const base::RankEnv& env) {
  return {.world_size = env.world_size,
          .num_nodes = env.num_nodes,
          .local_world_size = env.local_world_size,
          .threads_hint = env.threads_hint,
          .usable_cores = base::usable_cores()};
}

void require_rendezvous(const base::RankEnv& env) {
  if (env.world_size == 1 || (!env.master_addr.empty() && env.master_port != 0)) return;
  base::fail(ErrorKind::usage,
             "{} says {} ranks, but MASTER_ADDR and MASTER_PORT do not say where they meet: launch "
             "with dtrun -n {} -- dtrain ..., or set both",
             env.source, env.world_size, env.world_size);
}

void warn_unused(const config::CommandLine& command_line, const std::vector<std::string>& unused) {
  if (unused.empty()) return;
  base::log_warning("{}: not used by dtrain {}: {}", command_line.config_file,
                    config::name_of(command_line.command), fmt::join(unused, ", "));
}

void warn_shortened(const config::TrainConfig& asked, const config::TrainConfig& resolved) {
  if (asked.warmup_steps == resolved.warmup_steps) return;
  base::log_warning("--warmup-steps {} is more than --steps {}: the warm-up takes half of them, {}",
                    asked.warmup_steps, asked.steps, resolved.warmup_steps);
}

}  // namespace

std::optional<Configured> configure(config::Command command, const Arguments& arguments) {
  const config::CommandLine command_line = config::parse_command_line(command, arguments);
  if (command_line.help) {
    print(command_help(command));
    return std::nullopt;
  }
  const base::RankEnv env = base::rank_env_of_process();
  config::Loaded loaded = config::load(command_line);
  const config::Launch launch = launch_of(env);
  bool has_file = !command_line.config_file.empty();
  if (auto run = config::continue_run(command_line, loaded, launch)) {
    if (env.rank == 0) base::log_info("{}", run->notice);
    loaded = std::move(run->loaded);
    has_file = true;
  }
  Configured configured{.config = config::resolve(command, loaded.config, launch),
                        .asked = loaded.config,
                        .env = env,
                        .has_file = has_file};
  if (env.rank == 0) {
    warn_unused(command_line, loaded.unused);
    warn_shortened(loaded.config.train, configured.config.train);
  }
  if (command_line.print_config) {
    if (env.rank == 0) {
      base::tell_plain_output();
      print(config::to_json(command, configured.config) + "\n");
    }
    return std::nullopt;
  }
  require_rendezvous(env);
  return configured;
}

}  // namespace dtrain::app
