#include "settings/inherited_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/data/split.h"
#include "dtrain/report/run_record.h"
#include "provenance.h"
#include "settings/model_path.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::path_exists;
using config::Config;

// The configuration in a manifest, with machine-dependent settings reset.
config::SavedRun settings_in(const checkpoint::format::Manifest& manifest) {
  config::SavedRun saved;
  saved.resolved = config::from_json(manifest.config);
  saved.requested = saved.resolved;
  saved.requested.machine.threads = 0;
  saved.requested.machine.backend = config::Backend::automatic;
  saved.ranks = manifest.mesh.num_ranks();
  return saved;
}

// True if --resume auto finds checkpoints in the run folder.
bool finds_checkpoints(const Config& given) {
  const std::string& run = given.run.dir;
  return given.checkpoint.resume.is_automatic() && !run.empty() &&
         !store::list_steps(store::checkpoints_folder(run)).empty();
}

bool resumes_run_folder(const Config& given) {
  return finds_checkpoints(given) && path_exists(config_file_in(given.run.dir));
}

// True if an earlier attempt of this launch has committed a checkpoint. Its folder may not be
// mounted yet: the start waits for it (subcommands/train.cpp) and then reads the settings again.
bool has_committed(const base::RankEnv& env) {
  const std::string run = store::run_key(provenance(env.world_size, env));
  return base::committed_step_of_process(run) >= 0;
}

// Rejects data with more tokens than the weights have, since --vocab cannot change the weights.
void check_vocab_of_data(const Config& config) {
  const std::string& init_from = config.checkpoint.init_from;
  const data::WeightsVocab vocab{
      .flag = fmt::format("--init-from {}", init_from),
      .weights = base::is_folder(init_from) ? store::weights_at(init_from) : init_from,
      .tokens = config.model.vocab};
  for (const std::string* data : {&config.data.train, &config.data.validation}) {
    if (!data->empty()) data::check_vocab_of_data(*data, vocab);
  }
}

}  // namespace

std::string config_file_in(const fs::path& run) { return (run / "config.json").string(); }

bool resumes_own_run(const config::CommandLine& command_line, const Config& given) {
  return command_line.config_file.empty() && resumes_run_folder(given);
}

std::optional<config::InheritedRun> inherited_run(const config::CommandLine& command_line,
                                                  const Config& given) {
  const config::Resume& resume = given.checkpoint.resume;
  if (command_line.command != config::Command::train || !command_line.config_file.empty()) {
    return std::nullopt;
  }
  const bool is_fork = resume.kind == config::Resume::Kind::path;
  // A command that names its data starts the run until there is a checkpoint.
  const bool starts = !is_fork && !given.data.train.empty();
  if (starts && !resumes_own_run(command_line, given)) return std::nullopt;
  if (const std::string file = config::resumed_config_file(given); !file.empty()) {
    return {{file, config::read_saved_run(file)}};
  }
  const std::string manifest = (fs::path(resume.path) / store::kManifestName).string();
  if (!is_fork || !path_exists(manifest)) return std::nullopt;
  return {{manifest, settings_in(store::read_manifest(resume.path))}};
}

std::optional<store::EarlierAttempt> begun_run(const Config& given, const base::RankEnv& env) {
  if (resumes_run_folder(given)) {
    return store::EarlierAttempt{.run_dir = given.run.dir, .has_checkpoint = true};
  }
  return store::find_earlier_attempt(given, provenance(env.world_size, env));
}

InitialModel initial_model(const config::CommandLine& command_line, const Config& given,
                           const base::RankEnv& env) {
  const std::string& path = given.checkpoint.init_from;
  const bool trains = config::find_key("checkpoint.init_from")->is_for(command_line.command);
  if (path.empty() || !trains) return {};
  if (const auto begun = begun_run(given, env); begun && begun->has_checkpoint) {
    return {.settings = config::read_saved_run(config_file_in(begun->run_dir)).resolved.model,
            .is_of_run = true};
  }
  try {
    return {.settings = model_of_weights(path)};
  } catch (const base::Error&) {
    // A run with a checkpoint no longer needs its initial weights, even if config.json is missing.
    if (finds_checkpoints(given) || has_committed(env)) return {};
    throw;
  }
}

void adopt_model_settings(const config::CommandLine& command_line, const InitialModel& initial,
                          config::LoadedSettings& loaded) {
  if (!initial.settings) return;
  const std::string& path = loaded.config.checkpoint.init_from;
  Config source;
  source.model = *initial.settings;
  Config resolved;
  resolved.model = config::with_resolved_sizes(source.model);
  const bool is_flag = command_line.gives("checkpoint.init_from");
  std::string replaced;
  std::string refused;
  for (const config::Setting& setting : config::settings()) {
    const bool is_of_model = setting.key.starts_with("model.");
    if (!is_of_model || !setting.is_used(config::Command::train, source)) continue;
    const std::string theirs = config::value_text(setting, source);
    const std::string ours = config::value_text(setting, loaded.config);
    if (ours == theirs) continue;
    const bool is_given = std::ranges::find(loaded.given, &setting) != loaded.given.end();
    const bool stays = is_given && (!is_flag || command_line.gives(setting.key));
    if (is_given && setting.key == "model.dropout") continue;  // it does not change the weights
    // A resumed run's settings are later compared with the flags.
    if (initial.is_of_run && command_line.gives(setting.key)) continue;
    const bool repeats = config::repeats_value(setting, loaded.config, source);
    if (stays && repeats) continue;
    if (stays) {
      refused +=
          fmt::format("{}{} {} is given, but the weights have {}", refused.empty() ? "" : "; ",
                      setting.flag, ours, config::value_text(setting, resolved));
      continue;
    }
    if (is_given && !repeats) {
      replaced += fmt::format("{}{} {}", replaced.empty() ? "" : ", ", setting.flag, ours);
    }
    config::assign_text(setting, theirs, setting.key, loaded.config);
  }
  if (!refused.empty()) {
    base::fail(base::ErrorKind::usage, "--init-from {}: {}; omit these flags: the weights set them",
               path, refused);
  }
  if (!replaced.empty()) {
    loaded.replaced.push_back(fmt::format("--init-from {} replaces {}", path, replaced));
  }
  if (!initial.is_of_run) check_vocab_of_data(loaded.config);
}

std::string run_of_model(const std::string& model) {
  fs::path folder = base::resolved_path(model);
  if (!base::is_folder(folder)) folder = folder.parent_path();
  // RUN; or RUN/checkpoints/step-N, RUN/final
  constexpr int kLevels = 3;
  for (int level = 0; level < kLevels; ++level, folder = folder.parent_path()) {
    if (report::is_run(folder.string()) && path_exists(config_file_in(folder)))
      return folder.string();
  }
  return {};
}

config::Config evaluation_settings(const std::string& run) {
  Config settings;
  settings.report.eval_sequences = *config::Sequences::parse("all");
  if (run.empty()) return settings;
  const config::SavedRun saved = config::read_saved_run(config_file_in(run));
  settings.data.seq_len = saved.resolved.data.seq_len;
  settings.batch.microbatch = saved.resolved.batch.microbatch;
  const config::MachineConfig& machine = saved.requested.machine;
  settings.machine.dtype = machine.dtype;
  settings.machine.param_dtype = machine.param_dtype;
  settings.machine.buffer_dtype = machine.buffer_dtype;
  // Automatic instead of fused: the evaluating device may not have fused kernels.
  const config::Kernels kernels = config::kernels_of(saved);
  const bool is_fused = kernels == config::Kernels::fused;
  settings.machine.kernels = is_fused ? config::Kernels::automatic : kernels;
  settings.machine.attention = machine.attention;
  settings.machine.matmul_precision = machine.matmul_precision;
  return settings;
}

}  // namespace dtrain::app
