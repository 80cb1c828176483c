// Finds the model that the path of --from means.
#pragma once

#include <string>

namespace dtrain::app {

/// A model file, a checkpoint's folder, or a run folder for the newest checkpoint in it that is
/// whole: of a run its final model, unless there is none or a later start has made checkpoints
/// beyond it. Checkpoints are looked at by their names alone.
///
/// Throws: Error{checkpoint} naming the path, and what to give in its place: if it does not exist,
///         is a file of a checkpoint, no run folder, or that of a run without a model.
[[nodiscard]] std::string model_path(const std::string& from);

}  // namespace dtrain::app
