// Checks the paths given to --from, --resume and --init-from, before LibTorch is loaded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/config/config.h"

namespace dtrain::app {

/// Resolves the path given to --from to a model file or a checkpoint folder. For a run, returns its
/// final model; if it has none, or has checkpoints of later steps, returns the run folder, which
/// stands for its latest complete checkpoint. Lists checkpoints without reading them.
///
/// Throws: Error{checkpoint} naming the path and what to give instead: if it does not exist, is a
///         file of a checkpoint, or is not a run folder that holds a model.
[[nodiscard]] std::string model_path(const std::string& from);

/// Throws: Error{usage} if --from is not given.
void require_from(const std::string& from);

/// model: a result of model_path.
///
/// Throws: Error{checkpoint} naming --from and the file if `model` is a file but not a model file.
void require_model_file(const std::string& model);

/// Calls `open`; prefixes the message of an error with `flag`, which file readers do not know.
template <typename Open>
void open_for(std::string_view flag, Open open) {
  try {
    open();
  } catch (const base::Error& error) {
    base::fail(error.kind(), "{}: {}", flag, error.what());
  }
}

/// Checks the kind of the path given to --resume, so that a wrong path is not reported as a damaged
/// checkpoint. Does not examine the contents of checkpoints.
///
/// Throws: Error{checkpoint} naming the flag, the path, what it is and what to give.
void check_resume(const config::Resume& resume);

/// Returns the model settings that are stored with the weights at `path`, which --init-from gives;
/// empty if the weights do not describe their model. Does not examine the values of the weights.
///
/// Throws: Error{checkpoint} naming --init-from and the path or file: if it does not exist, has no
///         weights, or describes a model that dtrain does not have.
[[nodiscard]] std::optional<config::ModelConfig> model_of_weights(const std::string& path);

}  // namespace dtrain::app
