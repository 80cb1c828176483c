// Names the folder of a run's checkpoints, and the folders in it.
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

}  // namespace dtrain::checkpoint::store
