// Opens a model to compute with: a model file, a checkpoint, or a run's newest checkpoint.
#pragma once

#include <c10/core/TensorOptions.h>

#include <functional>
#include <memory>
#include <string>

#include "dtrain/config/config.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::commands {

/// An opened model, whose weights and tokenizer are read when they are asked for.
///
/// Throws: the functions Error{checkpoint} naming what is missing, damaged or does not fit.
struct OpenedModel {
  config::ModelConfig settings;
  std::string path;  ///< of the model file or the checkpoint
  std::function<std::shared_ptr<const data::Tokenizer>()> open_tokenizer;
  std::function<param::Arena(const model::Model&, const at::TensorOptions&)> read_weights;
};

/// Opens generate.from; a line names the checkpoint that is used, if it is one.
///
/// Throws: Error{checkpoint} naming what is missing or damaged, or does not say its levels.
[[nodiscard]] OpenedModel open_model(const config::GenerateConfig& generate);

}  // namespace dtrain::commands
