// Reads the model of a checkpoint that any layout may have written.
#pragma once

#include <c10/core/TensorOptions.h>

#include <string>

#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/config.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::commands {

/// Opens a checkpoint and verifies every byte of its weights. They stay readable if the job that
/// wrote the checkpoint removes it afterwards.
///
/// Throws: Error{checkpoint} naming what is damaged or missing.
[[nodiscard]] checkpoint::store::Reader open_weights(const std::string& checkpoint);

/// Opens the latest checkpoint of a run with complete weights. Skips damaged ones with a warning
/// each. The run may still be training.
///
/// Throws: Error{checkpoint} naming the folder if the run has no complete checkpoint.
[[nodiscard]] checkpoint::store::Reader open_newest_weights(const std::string& run_dir);

/// Settings of the checkpoint's model.
///
/// Throws: Error{checkpoint} naming the checkpoint.
[[nodiscard]] config::ModelConfig model_of(const checkpoint::store::Reader& reader);

/// The weights, in the options' dtype on their device.
///
/// Throws: Error{checkpoint} naming the tensor that is missing or has another shape.
[[nodiscard]] param::Arena read_weights(checkpoint::store::Reader& reader,
                                        const model::Model& model,
                                        const at::TensorOptions& options);

}  // namespace dtrain::commands
