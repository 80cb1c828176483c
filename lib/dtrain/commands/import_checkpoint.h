// dtrain checkpoint import: a model file as a checkpoint that --init-from takes.
#pragma once

#include "dtrain/commands/commands.h"

namespace dtrain::commands {

/// Writes the weights of config.importing's file as a checkpoint of step 0 without optimizer state:
/// float64 if the file has such weights, else float32. The folder appears whole or not at all.
/// Gives one line to `output`.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing, unknown or of another
///         shape than the file's model, or the folder that exists or cannot be written; as
///         train::model_of.
void import_checkpoint(const config::Config& config, const Output& output);

}  // namespace dtrain::commands
