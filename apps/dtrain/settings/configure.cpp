#include "settings/configure.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/cpu_list.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/number.h"
#include "dtrain/config/input/conflicts.h"
#include "dtrain/config/resolve/notices.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/resumed_settings.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/data/split.h"
#include "runtime_library.h"
#include "settings/inherited_run.h"
#include "settings/matched_sizes.h"
#include "settings/model_path.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;

constexpr std::string_view kVocab = "model.vocab";

config::Launch launch_of(const base::RankEnv& env) {
  return {.world_size = env.world_size,
          .num_nodes = env.num_nodes,
          .local_world_size = env.local_world_size,
          .threads_hint = env.threads_hint,
          .usable_cores = base::usable_cores(),
          .devices = RuntimeLibrary::devices(),
          .num_gpus = RuntimeLibrary::num_gpus(),
          .no_gpu_reason = RuntimeLibrary::no_gpu_reason()};
}

// The variable of the world size that belongs to the variable of the rank.
std::string count_variable(const std::string& rank_variable) {
  if (rank_variable == "RANK") return "WORLD_SIZE";
  if (rank_variable == "SLURM_PROCID") return "SLURM_NTASKS";
  const std::size_t end = rank_variable.rfind("RANK");
  return end == rank_variable.npos ? rank_variable : rank_variable.substr(0, end) + "SIZE";
}

void require_rendezvous(const base::RankEnv& env, config::Backend backend) {
  if (backend == config::Backend::mpi) return;  // MPI does the rendezvous
  const base::RendezvousEnv& rendezvous = env.rendezvous;
  if (env.world_size == 1) return;
  if (!rendezvous.master_addr.empty() && rendezvous.master_port != 0) return;
  if (env.slurm_step) return;  // the address is derived from SLURM's variables
  base::fail(ErrorKind::usage,
             "{} says {} ranks, but MASTER_ADDR and MASTER_PORT, the rendezvous address, are not "
             "set: launch with dtrun -n {} -- dtrain ..., or set both",
             count_variable(env.source), env.world_size, env.world_size);
}

void warn_unused(const config::CommandLine& command_line, const std::vector<std::string>& unused) {
  const auto tell = [&](const std::string& file, const std::vector<std::string>& keys) {
    if (keys.empty()) return;
    base::log_warning("{}: dtrain {} ignores these keys: {}", file,
                      config::name_of(command_line.command), fmt::join(keys, ", "));
  };
  tell(command_line.config_file, unused);
  tell(command_line.deepspeed_file, command_line.unused_deepspeed_keys);
}

void warn_shortened(const config::TrainConfig& asked, const config::TrainConfig& resolved) {
  if (!asked.warmup_steps || asked.warmup_steps == resolved.warmup_steps) return;
  const std::string length = resolved.epochs > 0 ? fmt::format("the {} steps of --epochs {}",
                                                               resolved.steps, resolved.epochs)
                                                 : fmt::format("--steps {}", resolved.steps);
  base::log_warning("--warmup-steps {} exceeds {}: the warm-up is shortened to half of them, {}",
                    *asked.warmup_steps, length, *resolved.warmup_steps);
}

// Rejects sizes without a unit that are too small to be meant as bytes, such as --memory-limit 10.
void require_unit(const config::Assignment& given) {
  constexpr std::string_view kSizes[] = {"machine.memory_limit", "plan.device_memory", "plan.link"};
  constexpr std::int64_t kMinBytes = 1'000'000;
  if (std::ranges::count(kSizes, given.setting->key) == 0) return;
  const auto bytes = base::whole_number_in<std::int64_t>(given.text);
  if (!bytes || *bytes <= 0 || *bytes >= kMinBytes) return;
  base::fail(ErrorKind::usage,
             "{}: {} without a unit means bytes, which is too little: give a unit, as in {}GB",
             given.origin, given.text, given.text);
}

void check_values(const config::CommandLine& command_line) {
  for (const config::Assignment& given : command_line.assignments) {
    if (given.setting->key == "data.train") config::reject_single_file_mixture(given.text);
    require_unit(given);
    // An empty folder, as from a script's unset variable, must not start a run elsewhere.
    if (given.setting->key != "run.dir" || !given.text.empty()) continue;
    base::fail(ErrorKind::usage, "{} is empty: name a folder, or omit it", given.origin);
  }
}

// For flags named in a message that come from a DeepSpeed file: " (--lr from ds.json: KEY)".
std::string deepspeed_origins(const config::CommandLine& command_line, std::string_view message) {
  std::string keys;
  for (const config::Assignment& given : command_line.assignments) {
    const bool is_key = !command_line.deepspeed_file.empty() &&
                        given.origin.starts_with(command_line.deepspeed_file + ": ");
    const std::string flag = fmt::format("{} ", given.setting->flag);
    if (!is_key || message.find(flag) == message.npos) continue;
    keys += (keys.empty() ? "" : ", ") + flag + "from " + given.origin;
  }
  return keys.empty() ? "" : " (" + keys + ")";
}

// Resolves the configuration. With --epochs it first computes the steps from data and batch, since
// other settings depend on them.
config::Config resolve_with_epochs(config::Command command, config::Config config,
                                   const config::Launch& launch) {
  const bool trains = command == config::Command::train || command == config::Command::doctor;
  const bool counts_epochs = trains && config.train.epochs > 0 && !config.data.train.empty();
  if (counts_epochs) {
    config::Config unlimited = config;
    unlimited.train.steps =
        static_cast<std::int64_t>(config::find_key("train.steps")->allowed.range.highest);
    const config::Config resolved = config::resolve(command, unlimited, launch);
    const data::Split split = data::open_split(data::split_options(resolved));
    config.train.steps = data::steps_of_epochs(resolved, split.train.size());
  }
  return config::resolve(command, config, launch);
}

// True if the vocabulary given by files is that of the files' data, which the command replaces.
bool is_vocab_of_replaced_data(const config::CommandLine& command_line,
                               const config::LoadedSettings& loaded) {
  config::CommandLine files = command_line;
  files.assignments.clear();
  files.num_deepspeed_assignments = 0;
  const config::LoadedSettings below = config::load(files);
  const std::string& data = below.config.data.train;
  if (data.empty()) return false;
  const std::string resumed = config::resumed_config_file(loaded.config);
  const std::int64_t vocab = below.config.model.vocab;
  if (!resumed.empty() && config::read_saved_run(resumed).resolved.model.vocab == vocab) {
    return false;  // the run has trained with it
  }
  if (data == loaded.config.data.train || !below.gives(kVocab)) return false;
  try {
    return data::vocab_of_data(data) == vocab;
  } catch (const base::StorageError&) {
    return false;  // the command replaces that data
  }
}

// Sets the vocabulary to that of the data unless another one is given.
void adopt_vocab_of_data(const config::CommandLine& command_line, config::LoadedSettings& loaded) {
  const config::Config& config = loaded.config;
  const bool has_vocab = config::find_key(kVocab)->is_for(command_line.command);
  if (command_line.gives(kVocab) || !has_vocab || config.data.train.empty()) return;
  if (loaded.gives(kVocab) && !is_vocab_of_replaced_data(command_line, loaded)) return;
  const auto found = data::vocab_of_data(config.data.train);
  if (!found) return;
  if (loaded.gives(kVocab) && *found != config.model.vocab) {
    loaded.replaced.push_back(fmt::format("--data {}: its vocabulary of {} replaces --vocab {}",
                                          config.data.train, *found, config.model.vocab));
  }
  loaded.config.model.vocab = *found;
}

std::vector<const config::Setting*> flags_of(const config::CommandLine& command_line) {
  std::vector<const config::Setting*> flags;
  for (const config::Assignment& each : command_line.assignments) flags.push_back(each.setting);
  return flags;
}

// Resets microbatch settings of files that do not divide the flags' global batch on these ranks.
void fit_batch(const config::CommandLine& command_line, config::LoadedSettings& loaded,
               const config::Launch& launch) {
  const std::vector<const config::Setting*> given = flags_of(command_line);
  const config::Config below = loaded.config;
  for (std::string& line : config::reset_conflicting_batch(below, given, loaded.config, launch)) {
    loaded.replaced.push_back(std::move(line));
  }
}

// Reads and resolves the settings of the command and of the run that it resumes.
Configured read_settings(const config::CommandLine& command_line, const config::Launch& launch,
                         const base::RankEnv& env) {
  check_values(command_line);
  config::LoadedSettings given = config::load(command_line);
  const config::Command command = command_line.command;
  if (command == config::Command::evaluate && !given.config.generate.from.empty()) {
    const std::string model = model_path(given.config.generate.from);
    given = config::load(command_line, evaluation_settings(run_of_model(model)));
    given.config.generate.from = model;
  }
  config::check_auto_layout(command_line, given.config);
  check_match(command_line, given.config);
  adopt_vocab_of_data(command_line, given);
  const bool starts = command == config::Command::train && !command_line.print_config;
  if (starts) config::require_run_dir(given.config);
  const auto run = inherited_run(command_line, given.config);
  try {
    Configured configured{.loaded = given};
    if (run) {
      config::ResumedSettings continued =
          config::resume_settings(command_line, given, *run, launch);
      configured = {.loaded = std::move(continued.loaded),
                    .origin = run->path,
                    .notice = std::move(continued.notice)};
    }
    config::LoadedSettings& loaded = configured.loaded;
    configured.strategy =
        config::apply_default_strategy(command_line, launch, loaded.config.layout);
    const InitialModel initial = initial_model(command_line, loaded.config, env);
    if (!run) {
      adopt_model_settings(command_line, initial, loaded);
      configured.match = adopt_matched_sizes(command_line, launch, env, loaded);
      if (command == config::Command::train) fit_batch(command_line, loaded, launch);
    }
    configured.config = resolve_with_epochs(command, loaded.config, launch);
    return configured;
  } catch (const base::Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    const std::string message = error.what();
    const std::string origin =
        run ? fmt::format(" (settings that the command omits come from {})", run->path) : "";
    base::fail(ErrorKind::usage, "{}{}{}", message, origin,
               deepspeed_origins(command_line, message));
  }
}

// As read_settings. If SLURM sets the number of ranks, an error about it also says how to start ranks
// in a shell of srun --pty, where the step's other tasks do not run dtrain.
Configured read_settings_of_rank(const config::CommandLine& command_line,
                                 const config::Launch& launch, const base::RankEnv& env) {
  try {
    return read_settings(command_line, launch, env);
  } catch (const base::Error& error) {
    const std::string_view message = error.what();
    const bool is_of_step = env.slurm_step && env.world_size > 1;
    if (!is_of_step || message.find("launched with") == message.npos) throw;
    base::fail(error.kind(),
               "{} ({} sets their number; in a shell of srun --pty start ranks with dtrun "
               "--standalone -n {} -- dtrain ...)",
               message, count_variable(env.source), env.world_size);
  }
}

}  // namespace

std::optional<Configured> configure(const config::CommandLine& given) {
  const config::CommandLine command_line = config::with_deepspeed(given);
  const base::RankEnv env = base::rank_env_of_process();
  const config::Launch launch = launch_of(env);
  Configured configured = read_settings_of_rank(command_line, launch, env);
  configured.env = env;
  configured.launch = launch;
  configured.flags = flags_of(command_line);
  configured.is_quiet = command_line.quiet;
  configured.is_verbose = command_line.verbose;
  configured.has_file =
      !command_line.config_file.empty() || !configured.notice.empty() || !configured.match.empty();
  const config::LoadedSettings& loaded = configured.loaded;
  const bool tells = env.rank == 0 && !command_line.quiet;
  if (tells && !configured.notice.empty()) base::log_info("{}", configured.notice);
  if (tells && !configured.match.empty()) base::log_info("{}", configured.match);
  if (env.rank == 0) {
    warn_unused(command_line, loaded.unused);
    warn_shortened(loaded.config.train, configured.config.train);
  }
  if (tells) {
    for (const std::string& line : command_line.repeated) base::log_info("{}", line);
    for (const std::string& line : loaded.replaced) base::log_info("{}", line);
    const std::string note = config::device_note(loaded.config, configured.config, launch);
    if (!note.empty()) base::log_info("{}", note);
  }
  if (command_line.print_config) {
    if (env.rank == 0) {
      base::request_plain_output();
      print(config::to_json(command_line.command, configured.config) + "\n");
    }
    return std::nullopt;
  }
  require_rendezvous(env, configured.config.machine.backend);
  return configured;
}

void warn(config::Command command, const Configured& configured) {
  if (configured.env.rank != 0) return;
  if (!configured.is_quiet && !configured.strategy.empty())
    base::log_info("{}", configured.strategy);
  const std::string threads = config::threads_warning(configured.loaded.config, configured.config,
                                                      configured.launch, base::is_bound());
  if (!threads.empty()) base::log_warning("{}", threads);
  // --strategy auto has not chosen a layout yet; commands::choose_layout warns once it has.
  if (configured.config.layout.strategy == config::Strategy::automatic) return;
  for (const std::string& line : config::warnings(command, configured.config, configured.flags)) {
    base::log_warning("{}", line);
  }
}

}  // namespace dtrain::app
