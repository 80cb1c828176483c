#include "dtrain/base/path_kind.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include "dtrain/base/storage_error.h"

namespace dtrain::base {
namespace {

namespace fs = std::filesystem;
using StatusOf = fs::file_status (*)(const fs::path&, std::error_code&);

fs::file_status examine(const fs::path& path, StatusOf status_of) {
  fs::file_status status;
  std::error_code error;
  const int result = with_patience(path.string(), [&] {
    status = status_of(path, error);
    errno = error.value();
    return status.type() == fs::file_type::none ? -1 : 0;
  });
  if (result == 0) return status;
  if (storage_fault(error.value()) != StorageFault::passing) {
    return fs::file_status(fs::file_type::not_found);
  }
  throw StorageError(
      fmt::format("'{}' cannot be examined ({})", path.string(), std::strerror(error.value())));
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

bool is_there(const fs::path& path) { return fs::exists(path_status(path)); }

bool is_folder(const fs::path& path) { return fs::is_directory(path_status(path)); }

}  // namespace dtrain::base
