#include "dtrain/metrics/appended_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file_system.h"
#include "dtrain/base/log.h"

namespace dtrain::metrics {
namespace {

// Follows no link, whose target would lose its content, and waits for no FIFO.
base::Descriptor open_file(const std::string& path, AppendedFile::Start start) {
  base::Descriptor file(::open(
      path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!file) {
    const bool is_odd = errno == ELOOP || errno == ENXIO;  // a link, a FIFO without a reader
    base::fail(base::ErrorKind::data, "{}: cannot be created: {}", path,
               is_odd ? "it is a link or a FIFO; remove it" : std::strerror(errno));
  }
  struct stat status {};
  const bool is_fifo = ::fstat(file.get(), &status) == 0 && S_ISFIFO(status.st_mode);
  if (!is_fifo && (start == AppendedFile::Start::appended || ::ftruncate(file.get(), 0) == 0)) {
    return file;
  }
  base::fail(base::ErrorKind::data, "{}: cannot be written: {}", path,
             is_fifo ? "it is a FIFO; remove it" : std::strerror(errno));
}

}  // namespace

AppendedFile::AppendedFile(std::string path, Start start, std::string_view parts)
    : path_(std::move(path)), start_(start), parts_(parts) {}

AppendedFile::~AppendedFile() {
  if (!write_waiting()) {
    base::log_warning("{}: its last {} are lost: {}", path_, parts_, std::strerror(errno));
  }
}

void AppendedFile::write(std::string_view bytes) {
  if (!file_) file_ = open_file(path_, start_);
  waiting_ += bytes;
  if (write_waiting()) return;
  const int reason = errno;
  if (!base::is_full_disk(reason) || waiting_.size() > kMaxWaitingBytes) {
    base::fail(base::ErrorKind::data, "{}: cannot be written: {}; make room and start again", path_,
               std::strerror(reason));
  }
  if (!has_warned_) {
    base::log_warning("{}: cannot be written: {}; training goes on, and {} wait for room", path_,
                      std::strerror(reason), parts_);
  }
  has_warned_ = true;
}

void AppendedFile::finish() {
  if (write_waiting()) return;
  const int reason = errno;
  waiting_.clear();
  base::fail(base::ErrorKind::data, "{}: its last {} are lost: {}; the rest of the run is whole",
             path_, parts_, std::strerror(reason));
}

// Returns whether all is written; else errno says why not.
bool AppendedFile::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t written = ::write(file_.get(), waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    waiting_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace dtrain::metrics
