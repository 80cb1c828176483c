// Finds the checkpoints that a user's path means.
#pragma once

#include <string>
#include <vector>

namespace dtrain::checkpoint::store {

/// `path` itself if it is a checkpoint's folder; else, of a run folder, its checkpoints, newest
/// first. Looks at names alone: what is found may be damaged.
///
/// Throws: Error{checkpoint} naming the path if it does not exist, is neither of the two, or is a
///         run without a checkpoint.
[[nodiscard]] std::vector<std::string> checkpoints_at(const std::string& path);

/// The run whose RUN/checkpoints `path` is; any other path as it is.
[[nodiscard]] std::string run_at(const std::string& path);

/// True if the folder has one of checkpoints. A run of its own may be named checkpoints, too.
[[nodiscard]] bool has_checkpoints_folder(const std::string& run_dir);

/// The same for a run folder, or its folder of checkpoints, alone; a run without a checkpoint has none.
[[nodiscard]] std::vector<std::string> checkpoints_of_run(const std::string& path);

/// Resolves a folder to weights: the model file of a final/ folder or of a run without checkpoints;
/// otherwise the first of checkpoints_at.
///
/// Throws: Error{checkpoint} as checkpoints_at.
[[nodiscard]] std::string weights_at(const std::string& path);

/// In the metadata of model files, where the model's settings stand as JSON. All that dtrain writes
/// have it.
inline constexpr const char* kModelKey = "dtrain.model";

/// There: data::identity_of the model's tokenizer. Models of bytes have none.
inline constexpr const char* kTokenizerKey = "dtrain.tokenizer";

/// RUN/final/model.safetensors
[[nodiscard]] std::string final_model(const std::string& run_dir);

}  // namespace dtrain::checkpoint::store
