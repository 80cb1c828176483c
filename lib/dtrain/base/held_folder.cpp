#include "dtrain/base/held_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/storage_error.h"

namespace dtrain::base {

HeldFolder::HeldFolder(std::string path, ErrorKind kind)
    : path_(std::move(path)), kind_(kind), folder_(with_patience(path_, [&] {
        return ::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
      })) {
  if (folder_) return;
  const int error = errno;
  fail_on_storage(kind_, error,
                  fmt::format("folder '{}' cannot be opened ({})", path_, std::strerror(error)));
}

void HeldFolder::check() const {
  struct stat own {};
  struct stat there {};
  // The number of a folder that is open is not given to another one.
  if (with_patience(path_, [&] { return ::fstat(folder_.get(), &own); }) != 0) {
    const int error = errno;
    fail_on_storage(
        kind_, error,
        fmt::format("folder '{}' cannot be examined ({})", path_, std::strerror(error)));
  }
  if (::stat(path_.c_str(), &there) != 0) {
    // A disk that does not answer for a while has not moved the folder: what is written then fails
    // by itself.
    if (errno != ENOENT && errno != ENOTDIR) return;
    fail(kind_,
         "folder '{}' was moved or removed while this job ran ({}); nothing more is written; if it "
         "was moved, resume with --run-dir NEWNAME --resume auto",
         path_, std::strerror(errno));
  }
  if (own.st_dev == there.st_dev && own.st_ino == there.st_ino) return;
  fail(kind_,
       "folder '{}' was moved while this job ran, and another has its name; nothing is written "
       "there",
       path_);
}

std::unique_ptr<OutputFile> HeldDisk::create_file(const std::string& path) {
  folder_.check();
  return disk_.create_file(path);
}

void HeldDisk::make_folder(const std::string& path) {
  folder_.check();
  disk_.make_folder(path);
}

void HeldDisk::sync_folder(const std::string& path) {
  folder_.check();
  disk_.sync_folder(path);
}

void HeldDisk::rename(const std::string& from, const std::string& to) {
  folder_.check();
  disk_.rename(from, to);
}

void HeldDisk::remove_file(const std::string& path) {
  folder_.check();
  disk_.remove_file(path);
}

void HeldDisk::remove_folder(const std::string& path) {
  folder_.check();
  disk_.remove_folder(path);
}

}  // namespace dtrain::base
