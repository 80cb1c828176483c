#include "dtrain/base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace dtrain::base {

AtomicFile::AtomicFile(std::string path, ErrorKind kind) : path_(std::move(path)), kind_(kind) {
  create_temporary();
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::create_temporary() {
  // The number tells apart several writers of one process; O_EXCL decides who has it.
  for (int number = 0;; ++number) {
    std::string name = fmt::format("{}.tmp-{}-{}", path_, ::getpid(), number);
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = std::move(name);
      return;
    }
    if (errno != EEXIST) fail_with_errno("created");
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_with_errno("written");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno("written to disk");
  if (::close(std::exchange(fd_, -1)) != 0) fail_with_errno("closed");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno("given its name");
  temporary_.clear();
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC);
  if (folder < 0) fail_with_errno("made durable");
  const int status = ::fsync(folder);
  const int reason = errno;
  ::close(folder);
  // Some file systems cannot sync a folder and say EINVAL; there is nothing more to do there.
  errno = reason;
  if (status != 0 && reason != EINVAL) fail_with_errno("made durable");
}

void AtomicFile::fail_with_errno(const char* action) const {
  fail(kind_, "file '{}' cannot be {} ({}); check that its folder exists, is writable and has room",
       path_, action, std::strerror(errno));
}

}  // namespace dtrain::base
