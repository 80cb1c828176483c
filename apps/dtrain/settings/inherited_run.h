// Finds the run from which a launch inherits settings or a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resumed_settings.h"

namespace dtrain::app {

/// The path of a run's config.json.
[[nodiscard]] std::string config_file_in(const std::filesystem::path& run);

/// True if the command has no --config and resumes from its own run folder with --resume auto. It
/// then inherits every setting that it does not specify.
[[nodiscard]] bool resumes_own_run(const config::CommandLine& command_line,
                                   const config::Config& given);

/// Returns the run whose settings the command inherits:
/// - with --resume auto, RUN/config.json, unless the command names its data and the run has no
///   checkpoint yet;
/// - with --resume PATH, the run at PATH, the run that contains the checkpoint PATH, or else the
///   manifest of the checkpoint. Empty for a command with --config and if there is no run; later
///   checks report what is missing.
///
/// given:  the settings of the command only.
/// Throws: Error{usage} naming config.json, or Error{checkpoint} naming the manifest, if it cannot
///         be read.
[[nodiscard]] std::optional<config::InheritedRun> inherited_run(
    const config::CommandLine& command_line, const config::Config& given);

/// Returns the run that this start continues: the one in whose folder --resume auto finds
/// checkpoints and config.json, or the one that an earlier attempt of this launch began.
///
/// given:  files and flags.
/// Throws: as checkpoint::store::find_earlier_attempt.
[[nodiscard]] std::optional<checkpoint::store::EarlierAttempt> begun_run(
    const config::Config& given, const base::RankEnv& env);

/// The model of a start with --init-from.
struct InitialModel {
  std::optional<config::ModelConfig> settings = {};  ///< empty if they are not known
  bool is_of_run = false;  ///< those of the run that the start resumes, not of the weights
};

/// Returns the model of the run that the start resumes, or else that of the weights named by
/// --init-from. Empty without --init-from, for a command that does not train, and if the weights do
/// not describe their model.
///
/// given:  files and flags, including those of a resumed run.
/// Throws: as model_of_weights, unless the run has a checkpoint: then it needs the weights no more.
[[nodiscard]] InitialModel initial_model(const config::CommandLine& command_line,
                                         const config::Config& given, const base::RankEnv& env);

/// Sets the model settings to those of `initial`, unless they are given. If --init-from is a flag,
/// it also overrides model settings of files. No-op if the settings of `initial` are empty.
///
/// Throws: Error{usage} naming both values of a setting that the weights contradict; Error{data}
///         naming data whose vocabulary exceeds that of the weights.
void adopt_model_settings(const config::CommandLine& command_line, const InitialModel& initial,
                          config::LoadedSettings& loaded);

/// The run folder that trained the model at `model`, a result of model_path: `model` itself or a
/// parent at most two levels up. Follows links. Empty if there is none.
///
/// Throws: StorageError naming the path if the storage does not answer.
[[nodiscard]] std::string run_of_model(const std::string& model);

/// Settings with which an evaluation of a run's model is bit-identical to those during its training,
/// given the same device and threads, and training without tp and pp; evaluates all sequences.
/// Returns defaults if `run` is empty.
///
/// Throws: Error{usage} as config::read_saved_run.
[[nodiscard]] config::Config evaluation_settings(const std::string& run);

}  // namespace dtrain::app
