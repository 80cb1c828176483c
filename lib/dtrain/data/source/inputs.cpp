#include "dtrain/data/source/inputs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/data/text.h"

namespace dtrain::data {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// As .git and .DS_Store, which are no texts of the user's.
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  try {
    const fs::recursive_directory_iterator end;
    for (fs::recursive_directory_iterator entry(folder); entry != end; ++entry) {
      if (is_hidden(entry->path())) {
        entry.disable_recursion_pending();
        continue;
      }
      if (entry->is_symlink() || !entry->is_regular_file() || entry->file_size() == 0) continue;
      files.push_back(entry->path().string());
    }
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::data, "folder '{}' cannot be read: {}; check its permissions", folder,
         error.code().message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> list_inputs(const std::vector<std::string>& named) {
  std::vector<std::string> files;
  for (const std::string& input : named) {
    refuse_standard_input(input);
    std::error_code ignored;  // what is wrong with a file is said when it is opened
    if (fs::is_directory(input, ignored)) {
      const auto below = files_below(input);
      files.insert(files.end(), below.begin(), below.end());
    } else {
      files.push_back(input);
    }
  }
  if (!files.empty()) return files;
  if (named.empty()) fail(ErrorKind::usage, "no text is given; name files or folders with files");
  fail(ErrorKind::usage, "no text is found in '{}'; name files or folders with files",
       fmt::join(named, "', '"));
}

std::int64_t total_bytes(const std::vector<std::string>& files) {
  std::int64_t total = 0;
  for (const std::string& file : files) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(file, error);
    if (!error) total += static_cast<std::int64_t>(size);
  }
  return total;
}

}  // namespace dtrain::data
