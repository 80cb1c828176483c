#include "dtrain/base/new_folders.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <ranges>

#include "dtrain/base/storage_error.h"

namespace dtrain::base {

namespace fs = std::filesystem;

NewFolders::~NewFolders() {
  for (const std::string& path : made_ | std::views::reverse) {
    if (::rmdir(path.c_str()) != 0) return;
  }
}

bool NewFolders::add(const std::string& path, std::error_code& error) {
  std::vector<fs::path> missing;
  fs::path each = fs::absolute(path, error);
  if (error) return false;
  if (!each.has_filename()) each = each.parent_path();  // "runs/a/"
  for (std::error_code unseen; !fs::exists(each, unseen) && each.has_relative_path();
       each = each.parent_path()) {
    missing.push_back(each);
  }
  bool is_new = false;
  for (const fs::path& folder : missing | std::views::reverse) {
    (void)with_patience(folder.string(), [&] {
      is_new = fs::create_directory(folder, error);
      errno = error.value();
      return error ? -1 : 0;
    });
    if (error) return false;
    if (is_new) made_.push_back(folder.string());
  }
  return is_new;
}

}  // namespace dtrain::base
