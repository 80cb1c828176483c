#include "dtrain/metrics/appended_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/storage_error.h"

namespace dtrain::metrics {
namespace {

// Follows no link, whose target would lose its content, and waits for no FIFO.
constexpr int kFlags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

[[noreturn]] void fail_with(const std::string& path, std::string_view action, int error) {
  base::fail_on_storage(base::ErrorKind::data, error,
                        fmt::format("{}: cannot be {}: {}", path, action, std::strerror(error)));
}

// status: set to that of the file.
base::Descriptor open_file(const std::string& path, AppendedFile::Start start,
                           struct stat& status) {
  using base::with_patience;
  base::Descriptor file(
      with_patience(path, [&] { return ::open(path.c_str(), kFlags | O_CREAT, 0666); }));
  const int reason = errno;
  if (file && with_patience(path, [&] { return ::fstat(file.get(), &status); }) != 0) {
    fail_with(path, "examined", errno);
  }
  // A link, a FIFO without a reader, one with a reader.
  const bool is_odd = file ? S_ISFIFO(status.st_mode) : reason == ELOOP || reason == ENXIO;
  if (is_odd) {
    base::fail(base::ErrorKind::data, "{}: cannot be written: it is a link or a FIFO; remove it",
               path);
  }
  if (!file) fail_with(path, "created", reason);
  if (start == AppendedFile::Start::appended) return file;
  if (with_patience(path, [&] { return ::ftruncate(file.get(), 0); }) != 0) {
    fail_with(path, "emptied", errno);
  }
  status.st_size = 0;
  return file;
}

}  // namespace

AppendedFile::AppendedFile(std::string path, Start start, std::string_view parts)
    : path_(std::move(path)), start_(start), parts_(parts) {}

AppendedFile::~AppendedFile() {
  if (!write_waiting(false)) {
    base::log_warning("{}: its last {} are lost: {}", path_, parts_, std::strerror(errno));
  }
}

void AppendedFile::write(std::string_view bytes) {
  if (!file_) {
    struct stat status {};
    file_ = open_file(path_, start_, status);
    inode_ = status.st_ino;
    size_ = status.st_size;
  }
  waiting_ += bytes;
  if (write_waiting(false)) return;
  const int reason = errno;
  if (!base::is_full_disk(reason)) {
    waiting_.clear();
    fail_with(path_, "written", reason);
  }
  if (waiting_.size() > kMaxWaitingBytes) {
    base::fail_on_storage(base::ErrorKind::data, reason,
                          fmt::format("{}: cannot be written: {}; make room and start again", path_,
                                      std::strerror(reason)));
  }
  if (!has_warned_) {
    base::log_warning("{}: cannot be written: {}; training goes on, and {} wait for room", path_,
                      std::strerror(reason), parts_);
  }
  has_warned_ = true;
}

void AppendedFile::finish() {
  if (write_waiting(true)) return;
  const int reason = errno;
  waiting_.clear();
  base::fail_on_storage(base::ErrorKind::data, reason,
                        fmt::format("{}: its last {} are lost: {}; the rest of the run is whole",
                                    path_, parts_, std::strerror(reason)));
}

// Returns whether all is written; else errno says why not.
bool AppendedFile::write_waiting(bool waits_for_room) {
  base::StorageRetry retry(path_);
  bool has_failed = false;
  while (!waiting_.empty()) {
    const ssize_t written =
        has_failed && !open_again() ? -1 : ::write(file_.get(), waiting_.data(), waiting_.size());
    has_failed = written < 0;
    if (has_failed) {
      const bool is_left = base::is_full_disk(errno) && !waits_for_room;
      if (is_left || !retry.again(errno)) return false;
      continue;
    }
    size_ += written;
    waiting_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

// A stale descriptor stays stale, and a write that failed may have left a part of its bytes. The
// bytes stay with their file where the path leads to another one, or to none while its mount is
// missing.
bool AppendedFile::open_again() {
  struct stat status {};
  base::Descriptor file(::open(path_.c_str(), kFlags));
  if (file && ::fstat(file.get(), &status) == 0 && status.st_ino == inode_) {
    file_ = std::move(file);
  }
  if (::fstat(file_.get(), &status) != 0) return false;
  if (!S_ISREG(status.st_mode) || status.st_size <= size_) return true;
  return ::ftruncate(file_.get(), size_) == 0;
}

}  // namespace dtrain::metrics
