// Finds the run whose settings, or whose model, a start takes.
#pragma once

#include <optional>
#include <string>

#include "dtrain/config/continued_run.h"
#include "dtrain/config/input/command_line.h"

namespace dtrain::app {

/// True for a command without --config whose run folder has checkpoints that --resume auto resumes:
/// all settings that it does not give come from the run.
[[nodiscard]] bool resumes_own_run(const config::CommandLine& command_line,
                                   const config::Config& given);

/// The run that a command resumes without saying all of its settings itself: RUN/config.json with
/// --resume auto, unless the command names its data and the run has no checkpoint yet; with --resume PATH the run at PATH or that PATH is a checkpoint of,
/// or the manifest of a checkpoint that lies elsewhere. Nothing for a command with --config, and
/// where there is no run: later checks say what is missing.
///
/// given:  what the command alone says.
/// Throws: Error{usage} naming config.json, or Error{checkpoint} naming the manifest, if it cannot
///         be read.
[[nodiscard]] std::optional<config::RunSettings> inherited_run(
    const config::CommandLine& command_line, const config::Config& given);

/// Takes the model's settings from the weights that --init-from names, as far as nobody else gives
/// them; those of files give way to a flag --init-from. A file that does not describe its model
/// changes nothing.
///
/// Throws: Error{usage} naming both values of a setting that the weights contradict.
void take_model_of_weights(const config::CommandLine& command_line, config::Loaded& loaded);

/// The run whose settings trained the model at `model`, a result of model_path: the run folder that
/// it is or lies in, at most two levels up. Follows links. Empty if there is none.
///
/// Throws: StorageError naming the path if the storage does not answer.
[[nodiscard]] std::string run_of_model(const std::string& model);

/// Settings with which an evaluation of a run's model has the bits of those within its training, as
/// far as device and threads are the same and it trained without tp and pp; all sequences are read.
/// Defaults if `run` is empty.
///
/// Throws: Error{usage} as config::read_saved_run.
[[nodiscard]] config::Config settings_of_training(const std::string& run);

}  // namespace dtrain::app
