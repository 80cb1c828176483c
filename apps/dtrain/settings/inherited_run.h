// Finds the run from which a launch inherits settings or a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resumed_settings.h"

namespace dtrain::app {

/// The path of a run's config.json.
[[nodiscard]] std::string config_file_in(const std::filesystem::path& run);

/// True if --resume auto finds checkpoints and config.json in the run folder. given: files and flags.
[[nodiscard]] bool resumes_run_folder(const config::Config& given);

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

/// Sets the model settings to those of the weights named by --init-from, unless they are given. If
/// --init-from is a flag, the weights also override model settings of files. No-op if the weights do
/// not describe their model.
///
/// Throws: Error{usage} naming both values of a setting that the weights contradict; Error{data} naming
///         data whose vocabulary exceeds that of the weights.
void adopt_model_settings(const config::CommandLine& command_line, config::LoadedSettings& loaded);

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
