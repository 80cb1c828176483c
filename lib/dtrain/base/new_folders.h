// Makes folders, and removes them again unless they are kept.
#pragma once

#include <string>
#include <system_error>
#include <vector>

namespace dtrain::base {

/// Folders that were missing. Those that are empty at destruction are removed, the newest first,
/// unless keep() was called: what is refused leaves no folder behind.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(NewFolders&& other) noexcept { made_.swap(other.made_); }
  NewFolders& operator=(NewFolders&&) = delete;
  ~NewFolders();

  /// Makes the folder at `path` and those above it that are missing. Returns whether `path` itself
  /// was; `error` tells why it cannot be made.
  bool add(const std::string& path, std::error_code& error);
  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;
};

}  // namespace dtrain::base
