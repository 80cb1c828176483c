// Creates folders, and removes them at destruction unless kept.
#pragma once

#include <string>
#include <system_error>
#include <vector>

namespace dtrain::base {

/// Folders that this process created. The destructor removes those that are empty, newest first,
/// unless keep() was called, so that a rejected start leaves no folder behind.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(NewFolders&& other) noexcept { made_.swap(other.made_); }
  NewFolders& operator=(NewFolders&&) = delete;
  ~NewFolders();

  /// Creates the folder at `path` and its missing parents. Returns whether `path` itself was
  /// missing; sets `error` if it cannot be created.
  bool add(const std::string& path, std::error_code& error);
  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;
};

}  // namespace dtrain::base
