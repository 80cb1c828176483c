// Names of checkpoints, and resolution of user paths to checkpoints, runs and weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::checkpoint::store {

/// The manifest's file name in a checkpoint.
inline constexpr std::string_view kManifestName = "manifest.json";

/// RUN/checkpoints
[[nodiscard]] std::string checkpoints_folder(const std::string& run_dir);

/// "step-12"
[[nodiscard]] std::string checkpoint_name(std::int64_t step);
/// The inverse of checkpoint_name: 12 for "step-12"; empty for any other name.
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);

/// Returns whether a folder is a checkpoint. It has a manifest; or it has the name of a checkpoint,
/// which is damaged then, but neither a config.json, as runs and Hugging Face's models have, nor a
/// model file.
///
/// Throws: as model_file_in.
[[nodiscard]] bool is_checkpoint(const std::string& path);

/// Returns a unique ID for a start of the program: the time in hexadecimal nanoseconds and the
/// process ID, as in "18ea4b45c0de1234-77".
[[nodiscard]] std::string new_start_id();

/// Returns whether `text` has the form of a new_start_id. False for a word, a date or a small
/// number that a user may have appended to ".tmp-" or ".superseded-".
[[nodiscard]] bool is_start_id(std::string_view text);

/// The temporary folder in which a checkpoint is written before its commit.
[[nodiscard]] std::string temporary_folder(const std::string& checkpoints, std::int64_t step,
                                           std::string_view run);

/// Lists the steps of the checkpoints in a folder, newest first, by name only; empty if the folder
/// does not exist.
///
/// Throws: Error{checkpoint} naming the folder if it cannot be read.
[[nodiscard]] std::vector<std::int64_t> list_steps(const std::string& checkpoints);

/// Returns `path` itself if it is a checkpoint, or the checkpoints of a run folder, newest first.
/// Checks names only, so the checkpoints may be damaged.
///
/// Throws: Error{checkpoint} naming the path if it does not exist, is neither a checkpoint nor a
///         run, or is a run without a checkpoint.
[[nodiscard]] std::vector<std::string> checkpoints_at(const std::string& path);

/// As checkpoints_at, but only for a run folder or its checkpoints folder; empty for a run without
/// checkpoints.
[[nodiscard]] std::vector<std::string> checkpoints_of_run(const std::string& path);

/// Returns RUN if `path` is RUN/checkpoints; otherwise `path` itself.
[[nodiscard]] std::string run_at(const std::string& path);

/// Returns RUN if `checkpoint`, with links resolved, is RUN/checkpoints/step-N; otherwise empty.
[[nodiscard]] std::string run_of_checkpoint(const std::string& checkpoint);

/// Returns whether a run folder has a checkpoints folder; false if its "checkpoints" is a run of
/// that name.
[[nodiscard]] bool has_checkpoints_folder(const std::string& run_dir);

/// Finds a model file with a conventional name in a folder; empty if there is none.
///
/// Throws: Error{checkpoint} naming the folder if it is a torch.distributed.checkpoint.
[[nodiscard]] std::string model_file_in(const std::string& folder);

/// Rejects a folder in which no weights were found, if it is that of a model of the hub.
///
/// Throws: Error{checkpoint} naming a GGUF file in it, or the folder if it has the config.json of a
///         Hugging Face model.
void refuse_missing_weights(const std::string& folder);

/// Rejects a file that has only some of a model's weights, by its name:
/// model-00001-of-00002.safetensors.
///
/// Throws: Error{checkpoint} naming the file and the folder with all of them.
void refuse_piece(const std::string& file);

/// Resolves a folder to weights: the model file if it is a final/ folder or a run without
/// checkpoints, otherwise the first of checkpoints_at.
///
/// Throws: Error{checkpoint} as checkpoints_at, or naming a folder without weights.
[[nodiscard]] std::string weights_at(const std::string& path);

/// Metadata key of the model's settings as JSON, present in all model files that dtrain writes.
inline constexpr const char* kModelKey = "dtrain.model";

/// Metadata key of the tokenizer's fingerprint (data::identity_of); absent for byte models.
inline constexpr const char* kTokenizerKey = "dtrain.tokenizer";

/// RUN/final/model.safetensors
[[nodiscard]] std::string final_model(const std::string& run_dir);

}  // namespace dtrain::checkpoint::store
