// dtrain checkpoint export: the weights of a checkpoint as one model file.
#pragma once

#include "dtrain/commands/commands.h"

namespace dtrain::commands {

/// Writes what config.exporting asks for, the same file as the run would write at its end, after
/// checking every checksum of the weights. Gives one line to `output`.
///
/// Throws: Error{checkpoint} naming what is missing, damaged or of another model, or the file that
///         cannot be written.
void export_checkpoint(const config::Config& config, const Output& output);

}  // namespace dtrain::commands
