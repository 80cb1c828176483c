// Asks without exceptions what a path leads to; what cannot be examined counts as absent.
#pragma once

#include <filesystem>
#include <system_error>

namespace dtrain::base {

/// Follows links.
[[nodiscard]] inline bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

/// Follows links.
[[nodiscard]] inline bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

}  // namespace dtrain::base
