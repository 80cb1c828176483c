// Names a run's checkpoints, and finds those that a user's path means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::checkpoint::store {

inline constexpr std::string_view kManifestName = "manifest.json";

/// RUN/checkpoints
[[nodiscard]] std::string checkpoints_folder(const std::string& run_dir);

/// "step-12"
[[nodiscard]] std::string checkpoint_name(std::int64_t step);
/// 12 for "step-12"; nothing for all that checkpoint_name would not give.
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);

/// A name for a start of the program that no other start has: the time in hexadecimal nanoseconds
/// and the number of the process, as in "18ea4b45c0de1234-77".
[[nodiscard]] std::string new_start_id();

/// Returns whether `text` is a name that new_start_id gives. A word, a date or a small number that
/// somebody else puts behind ".tmp-" or ".superseded-" is none.
[[nodiscard]] bool is_start_id(std::string_view text);

/// The folder that a checkpoint is written in before it has its name.
[[nodiscard]] std::string temporary_folder(const std::string& checkpoints, std::int64_t step,
                                           std::string_view run);

/// The steps of the checkpoints in a folder, newest first, by their names alone; none if the folder
/// does not exist.
///
/// Throws: Error{checkpoint} naming the folder if it cannot be read.
[[nodiscard]] std::vector<std::int64_t> list_steps(const std::string& checkpoints);

/// `path` itself if it is a checkpoint's folder; else, of a run folder, its checkpoints, newest
/// first. Looks at names alone: what is found may be damaged.
///
/// Throws: Error{checkpoint} naming the path if it does not exist, is neither of the two, or is a
///         run without a checkpoint.
[[nodiscard]] std::vector<std::string> checkpoints_at(const std::string& path);

/// The same for a run folder, or its folder of checkpoints, alone; a run without a checkpoint has
/// none.
[[nodiscard]] std::vector<std::string> checkpoints_of_run(const std::string& path);

/// The run whose RUN/checkpoints `path` is; any other path as it is.
[[nodiscard]] std::string run_at(const std::string& path);

/// The run folder that a checkpoint lies in, as RUN/checkpoints/step-N once links are resolved;
/// empty if it lies elsewhere.
[[nodiscard]] std::string run_of_checkpoint(const std::string& checkpoint);

/// True if the folder has one of checkpoints. A run of its own may be named checkpoints, too.
[[nodiscard]] bool has_checkpoints_folder(const std::string& run_dir);

/// The model file in a folder, under the name that its writers give it; empty if there is none.
///
/// Throws: Error{checkpoint} naming the folder if it is a checkpoint of PyTorch's.
[[nodiscard]] std::string model_file_in(const std::string& folder);

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
