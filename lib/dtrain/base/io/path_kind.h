// Asks what a path leads to. A disk that does not answer is asked again, so that what is there never
// counts as absent.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace dtrain::base {

/// The status of what `path` leads to; not_found if it is absent or permanently unreadable.
///
/// Throws: StorageError naming the path if the storage does not answer.
[[nodiscard]] std::filesystem::file_status path_status(const std::filesystem::path& path);
/// The same of a link itself.
[[nodiscard]] std::filesystem::file_status link_status(const std::filesystem::path& path);

/// The path without links, dots and double separators, as far as it exists; `path` itself if it can
/// never be examined.
///
/// Throws: as path_status.
[[nodiscard]] std::filesystem::path resolved_path(const std::filesystem::path& path);

/// The names in a folder, as far as they could be read: `error` tells why no further.
[[nodiscard]] std::vector<std::string> names_in(const std::string& folder, std::error_code& error);

/// Waits for a path that an earlier attempt of the job has read: it is not missing but on a mount
/// that is away.
///
/// Throws: StorageError naming the path if it stays away; its status lets the launcher try again.
void await_path(const std::string& path);

/// Returns whether both paths lead to the same file or folder.
///
/// Throws: as path_status.
[[nodiscard]] bool lead_to_same(const std::filesystem::path& one,
                                const std::filesystem::path& other);

/// Follows links.
[[nodiscard]] bool is_there(const std::filesystem::path& path);

/// Follows links.
[[nodiscard]] bool is_folder(const std::filesystem::path& path);

}  // namespace dtrain::base
