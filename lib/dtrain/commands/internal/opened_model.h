// Opens a model for inference: a model file, a checkpoint, or a run's latest checkpoint.
#pragma once

#include <c10/core/TensorOptions.h>

#include <functional>
#include <memory>
#include <string>

#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/config.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::commands {

/// An opened model, with functions that read its weights and tokenizer on demand.
///
/// Throws: the functions throw Error{checkpoint} naming a file or tensor that is missing, damaged
///         or does not match the settings.
struct OpenedModel {
  config::ModelConfig settings;
  std::string path;  ///< path of the model file or checkpoint
  std::function<std::shared_ptr<const data::Tokenizer>()> open_tokenizer;
  std::function<param::Arena(const model::Model&, const at::TensorOptions&)> read_weights;
};

/// Opens generate.from; if it is a run or a checkpoint, prints the path of the checkpoint in use.
///
/// Throws: Error{checkpoint} naming a file that is missing or damaged, or does not specify the
///         number of layers.
[[nodiscard]] OpenedModel open_model(const config::GenerateConfig& generate);

/// Opens a checkpoint and verifies every byte of its weights. They stay readable if the job that
/// wrote the checkpoint removes it afterwards.
///
/// Throws: Error{checkpoint} naming the file that is damaged or missing.
[[nodiscard]] checkpoint::store::Reader open_weights(const std::string& checkpoint);

/// Opens a run's latest checkpoint with complete weights. Skips damaged checkpoints, with a warning
/// for each. The run may still be training.
///
/// Throws: Error{checkpoint} naming the folder if the run has no complete checkpoint.
[[nodiscard]] checkpoint::store::Reader open_newest_weights(const std::string& run_dir);

/// Returns the weights in the options' dtype on their device.
///
/// Throws: Error{checkpoint} naming the tensor that is missing or has another shape.
[[nodiscard]] param::Arena read_weights(checkpoint::store::Reader& reader,
                                        const model::Model& model,
                                        const at::TensorOptions& options);

}  // namespace dtrain::commands
