#include "dtrain/base/io/path_kind.h"

#include <cerrno>
#include <cstring>

#include "dtrain/base/io/storage_error.h"

namespace dtrain::base {
namespace {

namespace fs = std::filesystem;
using StatusOf = fs::file_status (*)(const fs::path&, std::error_code&);

void refuse_passing(const fs::path& path, const std::error_code& error) {
  if (!is_transient(error.value())) return;
  throw StorageError(
      fmt::format("'{}' cannot be examined ({})", path.string(), std::strerror(error.value())),
      error.value());
}

fs::file_status examine(const fs::path& path, StatusOf status_of) {
  fs::file_status status;
  std::error_code error;
  const int result = retry_transient(path.string(), [&] {
    status = status_of(path, error);
    errno = error.value();
    return status.type() == fs::file_type::none ? -1 : 0;
  });
  if (result == 0) return status;
  refuse_passing(path, error);
  return fs::file_status(fs::file_type::not_found);
}

}  // namespace

fs::file_status path_status(const fs::path& path) {
  return examine(
      path, [](const fs::path& each, std::error_code& error) { return fs::status(each, error); });
}

fs::file_status link_status(const fs::path& path) {
  return examine(path, [](const fs::path& each, std::error_code& error) {
    return fs::symlink_status(each, error);
  });
}

fs::path resolved_path(const fs::path& path) {
  fs::path resolved;
  std::error_code error;
  const int result = retry_transient(path.string(), [&] {
    resolved = fs::weakly_canonical(path, error);
    errno = error.value();
    return error ? -1 : 0;
  });
  if (result == 0) return resolved;
  refuse_passing(path, error);
  return path;
}

std::vector<std::string> names_in(const std::string& folder, std::error_code& error) {
  std::vector<std::string> names;
  (void)retry_transient(folder, [&] {
    names.clear();
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    errno = error.value();
    return error ? -1 : 0;
  });
  return names;
}

void wait_for_path(const std::string& path) {
  retry_task([&](int) {
    std::error_code error;
    if (fs::exists(path, error) || error) return;  // other errors are reported when it is opened
    throw StorageError(fmt::format("'{}' does not exist, but an earlier attempt of this job used "
                                   "it: check that its file system is mounted",
                                   path),
                       ENOENT);
  });
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  bool are_same = false;
  std::error_code error;
  const int result = retry_transient(one.string(), [&] {
    are_same = fs::equivalent(one, other, error);
    errno = error.value();
    return error ? -1 : 0;
  });
  if (result != 0) refuse_passing(one, error);
  return are_same;
}

bool path_exists(const fs::path& path) { return fs::exists(path_status(path)); }

bool is_folder(const fs::path& path) { return fs::is_directory(path_status(path)); }

}  // namespace dtrain::base
