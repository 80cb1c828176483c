#include "dtrain/data/source/input_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/data/source/byte_stream.h"

namespace dtrain::data {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// Hidden files such as .git and .DS_Store are not user data.
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Identifies a file or folder independently of its path: device and inode.
using Identity = std::pair<dev_t, ino_t>;

/// Walks one folder: first its own entries, then its links, so the result does not depend on the
/// order in which the file system lists them.
class FolderWalk {
 public:
  explicit FolderWalk(const std::string& folder) { walk(folder); }

  InputFiles files() && {
    follows_links_ = true;
    while (!links_.empty()) {
      const std::set<std::string> links = std::exchange(links_, {});
      for (const std::string& link : links) follow(link);
    }
    std::ranges::sort(found_.paths);
    return std::move(found_);
  }

 private:
  void walk(const std::string& folder) {
    struct stat status {};
    const bool is_known = ::stat(folder.c_str(), &status) == 0 &&
                          !folders_.emplace(status.st_dev, status.st_ino).second;
    if (is_known) return;  // a link leads to a parent folder
    try {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) take(entry);
    } catch (const fs::filesystem_error& error) {
      fail(ErrorKind::data, "folder '{}' cannot be read: {}; check its permissions", folder,
           error.code().message());
    }
  }

  void take(const fs::directory_entry& entry) {
    const std::string path = entry.path().string();
    if (is_hidden(entry.path())) {
      ++found_.num_hidden;
    } else if (entry.is_symlink()) {
      links_.insert(path);
    } else if (entry.is_directory()) {
      walk(path);
    } else {
      struct stat status {};
      if (::stat(path.c_str(), &status) == 0) add_file(path, status);
    }
  }

  void follow(const std::string& link) {
    struct stat status {};
    if (::stat(link.c_str(), &status) != 0) {
      ++found_.num_broken_links;
      return;
    }
    const Identity identity{status.st_dev, status.st_ino};
    const bool is_folder = S_ISDIR(status.st_mode);
    const bool is_known = (is_folder ? folders_ : files_).contains(identity);
    ++(is_known ? found_.num_known_links : found_.num_links);
    if (is_known) return;
    if (is_folder) {
      walk(link);
    } else {
      add_file(link, status);
    }
  }

  void add_file(const std::string& path, const struct stat& status) {
    if (!S_ISREG(status.st_mode)) {
      ++found_.num_special;
    } else if (status.st_size == 0) {
      ++found_.num_empty;
    } else if (files_.emplace(status.st_dev, status.st_ino).second || !follows_links_) {
      found_.paths.push_back(path);
    }
  }

  InputFiles found_{};
  bool follows_links_ = false;
  std::set<std::string> links_{};  // not yet followed
  std::set<Identity> folders_{};
  std::set<Identity> files_{};
};

}  // namespace

void InputFiles::add(InputFiles more) {
  std::ranges::move(more.paths, std::back_inserter(paths));
  num_links += more.num_links;
  num_known_links += more.num_known_links;
  num_hidden += more.num_hidden;
  num_empty += more.num_empty;
  num_broken_links += more.num_broken_links;
  num_special += more.num_special;
}

std::string InputFiles::notes() const {
  std::vector<std::string> notes;
  const auto note = [&notes](std::int64_t count, std::string_view one, std::string_view many) {
    if (count > 0) notes.push_back(fmt::format("{} {}", count, count == 1 ? one : many));
  };
  note(num_links, "link followed", "links followed");
  note(num_known_links, "link to an already listed path skipped",
       "links to already listed paths skipped");
  note(num_hidden, "hidden entry skipped", "hidden entries skipped");
  note(num_empty, "empty file skipped", "empty files skipped");
  note(num_broken_links, "broken link skipped", "broken links skipped");
  note(num_special, "special file skipped", "special files skipped");
  return fmt::format("{}", fmt::join(notes, ", "));
}

InputFiles list_inputs(const std::vector<std::string>& named) {
  InputFiles files;
  for (const std::string& input : named) {
    std::error_code ignored;  // errors are reported when the file is opened
    if (input != kStandardInput && fs::is_directory(input, ignored)) {
      files.add(FolderWalk(input).files());
    } else {
      files.paths.push_back(input);
    }
  }
  if (std::ranges::count(files.paths, kStandardInput) > 1) {
    fail(ErrorKind::usage, "standard input (-) is named more than once; name it once");
  }
  if (!files.paths.empty()) return files;
  if (named.empty()) {
    fail(ErrorKind::usage,
         "no input given; name files or folders with files, or - for standard input");
  }
  const std::string notes = files.notes();
  fail(ErrorKind::usage, "no input files found in '{}'{}; name files or folders with files",
       fmt::join(named, "', '"), notes.empty() ? "" : fmt::format(" ({})", notes));
}

std::int64_t total_bytes(const std::vector<std::string>& files) {
  std::int64_t total = 0;
  for (const std::string& file : files) {
    if (file == kStandardInput) return 0;
    std::error_code error;
    const std::uintmax_t size = fs::file_size(file, error);
    if (!error) total += static_cast<std::int64_t>(size);
  }
  return total;
}

}  // namespace dtrain::data
