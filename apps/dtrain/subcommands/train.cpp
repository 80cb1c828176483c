// dtrain train: checks settings, paths and data, then starts the training in libdtrain.so.
#include <cerrno>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/host/plugin_file.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/checkpoint/store/removal.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/data/split.h"
#include "provenance.h"
#include "ranks.h"
#include "runtime_library.h"
#include "settings/configure.h"
#include "settings/model_path.h"

namespace dtrain::app {
namespace {

namespace store = checkpoint::store;

std::vector<std::string> inputs_of(const config::Config& config) {
  std::vector<std::string> inputs;
  for (const config::WeightedFile& file : config::mixture_or_file(config.data.train)) {
    inputs.push_back(file.path);
  }
  inputs.push_back(config.data.validation);
  inputs.push_back(config.machine.offload.folder);
  return inputs;
}

config::Config settings(const config::CommandLine& command_line) {
  return config::load(config::with_deepspeed(command_line)).config;
}

// As settings, if an earlier attempt has already read the same command line: an error now means that
// a configuration file is missing, which is retried.
config::Config settings_read_before(const config::CommandLine& command_line) {
  config::Config given;
  std::exception_ptr storage_error;  // already retried
  base::retry_task([&](int) {
    try {
      given = settings(command_line);
    } catch (const base::StorageError&) {
      storage_error = std::current_exception();
    } catch (const base::Error& error) {
      throw base::StorageError(error.what(), ENOENT);
    }
  });
  if (storage_error) std::rethrow_exception(storage_error);
  return given;
}

void await_all(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (!path.empty()) base::wait_for_path(path);
  }
}

// On a restart, waits for inputs that an earlier attempt has read: if one is missing now, its mount is
// probably temporarily unavailable. Waits only if the earlier attempt has started its run or
// committed a checkpoint, which proves that it had its inputs.
//
// Throws: StorageError naming the path that stays missing; its status lets the launcher retry.
//         Error{usage} as config::with_deepspeed and config::load.
void await_inputs(const config::CommandLine& command_line) {
  const base::RankEnv env = base::rank_env_of_process();
  if (env.restart_count == 0) return;
  const std::string origin = provenance(env.world_size, env);
  const bool has_committed = base::committed_step_of_process(store::run_key(origin)) >= 0;
  const config::Config given =
      has_committed ? settings_read_before(command_line) : settings(command_line);
  const auto earlier = store::find_earlier_attempt(given, origin);
  if (earlier) {
    // The command line may name no data; the run's settings do.
    const std::string record = earlier->run_dir + "/config.json";
    await_all(inputs_of(config::read_saved_run(record).resolved));
    await_all({given.checkpoint.resume.path});  // the settings are inherited from it
    if (!earlier->has_checkpoint) await_all({given.checkpoint.init_from});
  } else if (has_committed) {  // the run folder is missing as well
    await_all(inputs_of(given));
  }
}

// Warns about a batch larger than the data, and about files that the run reads so often that it
// memorises them, one line per file. Omits the latter with --new-data, since only the checkpoint
// tells how many steps will read the data. config: resolved.
std::vector<std::string> epoch_warnings(const config::Config& config, const data::Split& split) {
  constexpr double kMany = 1000;
  const std::int64_t steps = config.train.steps;
  const std::int64_t batch = config.batch.global;
  const double samples = static_cast<double>(steps) * static_cast<double>(batch);
  const std::vector<double> epochs = data::epochs_of(split.train, samples);
  std::vector<std::string> warnings;
  if (batch > split.train.size()) {
    const double times = static_cast<double>(batch) / static_cast<double>(split.train.size());
    warnings.push_back(
        fmt::format("each step of --global-batch {} uses the {} samples of the training data "
                    "{:.1f} times; lower "
                    "it",
                    batch, split.train.size(), times));
  }
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    if (epochs[i] < kMany || config.checkpoint.new_data) continue;
    warnings.push_back(
        fmt::format("{} steps of {} sequences read {} {:.0f} times: the model will memorise it; "
                    "give more data, or lower --steps or --global-batch",
                    steps, batch, split.train.sources()[i].samples.file().path(), epochs[i]));
  }
  return warnings;
}

// origin: the file that a resumed run inherits its settings from; empty: none.
data::Split open_split(const config::Config& config, const std::string& origin) {
  try {
    return data::open_split(data::split_options(config));
  } catch (const base::Error& error) {
    if (origin.empty()) throw;
    const bool is_fork = config.checkpoint.resume.kind == config::Resume::Kind::path;
    const std::string advice =
        is_fork ? "--data FILE as well" : fmt::format("--config {} --data FILE", origin);
    base::fail(error.kind(), "{} (from {}; if the data was moved, give {})", error.what(), origin,
               advice);
  }
}

data::Split open_data(const Configured& configured) {
  const config::Config& config = configured.config;
  if (config.data.train.empty()) {
    const config::Resume& resume = config.checkpoint.resume;
    if (resume.kind == config::Resume::Kind::path) {
      base::fail(
          base::ErrorKind::usage,
          "--data is missing, and --resume {} has no saved settings: give --data and the other "
          "settings of the run, or resume the run itself with --run-dir RUN --resume auto",
          resume);
    }
    const bool resumes_folder = resume.is_automatic() && !config.run.dir.empty();
    if (!resumes_folder) {
      base::fail(base::ErrorKind::usage, "--data is missing: name a token file or a text");
    }
    base::fail(base::ErrorKind::usage,
               "--resume auto: {} contains no config.json with the settings of a run: check "
               "--run-dir, or give --data and the other settings of the run",
               config.run.dir);
  }
  return open_split(config, configured.origin);
}

// The settings and the record of a start.
struct Start {
  Configured configured;
  std::string provenance;
  std::int64_t committed = -1;  // last step committed by an earlier attempt; negative if none
};

std::optional<Start> read_start(const config::CommandLine& command_line) {
  std::optional<Configured> configured = configure(command_line);
  if (!configured) return std::nullopt;
  const config::LayoutConfig& layout = configured->config.layout;
  const bool has_threads = config::strategy_of(layout).is_local();
  const std::int64_t ranks = has_threads ? layout.local_ranks : configured->env.world_size;
  std::string origin = provenance(ranks, configured->env);
  const std::int64_t committed = base::committed_step_of_process(store::run_key(origin));
  return Start{std::move(*configured), std::move(origin), committed};
}

// As read_start. On a restart it waits for the run folder, whose mount may be temporarily
// unavailable, and then reads the settings again, since they may come from the folder.
std::optional<Start> read_start_once_mounted(const config::CommandLine& command_line) {
  std::optional<Start> start = read_start(command_line);
  if (!start || start->committed < 0) return start;
  const config::Config& config = start->configured.config;
  // Only rank 0 waits, unless the settings, which every rank needs, come from the folder.
  const std::string& weights = config.checkpoint.init_from;
  const bool has_settings =
      !config.data.train.empty() && (weights.empty() || base::path_exists(weights));
  if (start->configured.env.rank != 0 && has_settings) return start;
  bool has_waited = false;
  check_for_all_ranks([&] {
    base::retry_task([&](int number) {
      store::check_run_of_launch(config, start->provenance, start->committed);
      has_waited = number > 0;
    });
  });
  return has_waited ? read_start(command_line) : start;
}

// Checks that the settings can be saved, the path to resume from, and the run folder. The path is
// checked first: a word such as `latest` is a path that does not exist, not a fork into an existing
// run. After a failed attempt the start continues that attempt's run.
void check_run(const Configured& configured, const std::string& provenance) {
  (void)config::reusable_settings(configured.loaded.config);
  config::Config config = configured.config;
  if (const auto earlier = store::find_earlier_attempt(config, provenance)) {
    config = store::resume_settings(std::move(config), *earlier);
  }
  check_resume(config.checkpoint.resume);
  config::check_run_folder(config);
  if (!config.run.dir.empty()) {
    store::check_run_files(config.run.dir, config::overwriting_flag(config));
  }
}

// The folder of example configurations, in the installation or in the checkout of the build.
std::string experiments_folder() {
  namespace fs = std::filesystem;
  constexpr const char* kExperiments = "configs/experiments";
  const fs::path libraries = base::library_folder_of_program();
  for (const char* above : {"../share/dtrain", "../../.."}) {
    const fs::path folder = (libraries / above / kExperiments).lexically_normal();
    std::error_code error;
    if (fs::is_directory(folder, error)) return folder.string();
  }
  return kExperiments;
}

// If no model setting is given, tells the user about the default model and larger ones.
void note_default_model(const config::Config& config) {
  for (const config::Setting& setting : config::settings()) {
    const bool is_of_model = setting.key.starts_with("model.");
    if (is_of_model && !is_default(setting, config)) return;
  }
  base::log_info(
      "without --config this trains a small model, which takes minutes on a laptop; for larger "
      "ones "
      "use --config {}/small.json, 25m.json or prod.json",
      experiments_folder());
}

// In an interactive SLURM shell, warns that the step's tasks are not ranks of this run.
void note_shell_of_step(const base::RankEnv& env) {
  if (env.tasks_of_shell <= 1) return;
  base::log_info(
      "dtrain runs as one process in a shell of srun --pty, not as one of the step's {} tasks; to "
      "start {} ranks on this node: dtrun -n {} -- dtrain ...",
      env.tasks_of_shell, env.tasks_of_shell, env.tasks_of_shell);
}

// Explains how to start ranks if the command or its file gives a distributed strategy without a
// launcher. A resumed run's strategy also trains on fewer ranks.
void note_lone_process(const Configured& configured) {
  const base::RankEnv& env = configured.env;
  const config::Strategy strategy = configured.config.layout.strategy;
  const bool needs_no_ranks = strategy == config::Strategy::single ||
                              strategy == config::Strategy::automatic ||
                              config::strategy_of(configured.config.layout).is_local();
  const bool is_inherited = !configured.loaded.gives("layout.strategy");
  if (needs_no_ranks || is_inherited || !env.source.empty() || env.tasks_of_shell > 1) return;
  base::log_info(
      "--strategy {0} without a launcher trains on a single rank; to start 2 ranks: dtrun -n 2 -- "
      "dtrain --strategy {0} ...",
      strategy);
}

// Under a launcher that restarts, warns about a run without checkpoints before its end.
void note_lost_steps(const base::RankEnv& env, const config::CheckpointConfig& checkpoint) {
  const bool is_first_start = env.max_restarts > 0 && env.restart_count == 0;
  if (!is_first_start || !checkpoint.every.is_never() || checkpoint.keep_best) return;
  base::log_info(
      "a restart would repeat all steps, since this run writes no checkpoint before its end; give, "
      "for example, --checkpoint-every 10m");
}

}  // namespace

int run_train(const config::CommandLine& given) {
  base::block_save_signals();
  report_stops_on_one_rank(" before the first step: there was nothing to save");
  await_inputs(given);
  config::CommandLine command_line = given;
  const std::string demo = add_demo_defaults(command_line);
  const auto start = read_start_once_mounted(command_line);
  if (!start) return 0;
  const Configured* const configured = &start->configured;
  const config::Config& config = configured->config;
  const bool first = configured->env.rank == 0;
  // Only rank 0 checks the run folder: others might already see files that rank 0 writes.
  if (first) check_for_all_ranks([&] { check_run(*configured, start->provenance); });
  const std::vector<std::string> warnings = epoch_warnings(config, open_data(*configured));
  const RuntimeLibrary library = RuntimeLibrary::open(config.layout);
  const bool tells = first && !configured->is_quiet;
  if (tells && !demo.empty()) base::log_info("{}", demo);
  warn(config::Command::train, *configured);
  for (const std::string& line : warnings) {
    if (first) base::log_warning("{}", line);
  }
  if (!configured->is_quiet) note_shell_of_step(configured->env);
  if (tells) note_lone_process(*configured);
  if (tells) note_lost_steps(configured->env, config.checkpoint);
  if (tells && !configured->has_file) note_default_model(config);
  return library.run({config::Command::train,
                      config,
                      {configured->loaded.config, start->provenance, configured->is_quiet,
                       configured->is_verbose}});
}

}  // namespace dtrain::app
