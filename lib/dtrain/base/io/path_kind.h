// File-status queries that retry after transient storage failures, so that an existing file is
// never reported as absent.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace dtrain::base {

/// The status of `path`, following links; not_found if it is absent or permanently unreadable.
///
/// Throws: StorageError naming the path if the storage still fails after the retries.
[[nodiscard]] std::filesystem::file_status path_status(const std::filesystem::path& path);
/// The same without following links.
[[nodiscard]] std::filesystem::file_status link_status(const std::filesystem::path& path);

/// The canonical form of `path` (no links, dots or double separators), as of
/// std::filesystem::weakly_canonical; `path` itself if it is permanently unreadable.
///
/// Throws: as path_status.
[[nodiscard]] std::filesystem::path resolved_path(const std::filesystem::path& path);

/// The names in a folder. On an error, returns the names read so far and sets `error`.
[[nodiscard]] std::vector<std::string> names_in(const std::string& folder, std::error_code& error);

/// Waits until `path` exists. For paths that an earlier attempt of the job has read: their mount
/// may be temporarily missing.
///
/// Throws: StorageError naming the path if it stays absent; its exit status makes the launcher
///         restart the job.
void wait_for_path(const std::string& path);

/// Returns whether both paths refer to the same file or folder.
///
/// Throws: as path_status.
[[nodiscard]] bool is_same_file(const std::filesystem::path& one,
                                const std::filesystem::path& other);

/// Follows links.
[[nodiscard]] bool path_exists(const std::filesystem::path& path);

/// Follows links.
[[nodiscard]] bool is_folder(const std::filesystem::path& path);

}  // namespace dtrain::base
