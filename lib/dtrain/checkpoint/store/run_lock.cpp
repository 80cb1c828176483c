#include "dtrain/checkpoint/store/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain::checkpoint::store {
namespace {

using base::ErrorKind;
using base::fail;

// "process 12 on host a", as the holder wrote it; it may be just about to.
std::string read_holder(int fd) {
  std::array<char, 512> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length))
                    : std::string("a process that has just begun");
}

void write_holder(int fd) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string text = fmt::format("process {} on host {}", ::getpid(), host.data());
  // Only a message is lost where this fails.
  if (::ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const auto written = ::pwrite(fd, text.data(), text.size(), 0);
  }
}

// The file's name may have come from anybody who can write to the folder.
std::string why_no_lock_file(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fmt::format("cannot be examined: {}", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (status.st_uid != ::geteuid()) {
    return fmt::format("belongs to user {}, and this is user {}", status.st_uid, ::geteuid());
  }
  return {};
}

// Follows no link and waits for no FIFO. Throws before anything is written.
int open_lock(const std::string& path) {
  const int fd =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0600);
  const bool is_link = fd < 0 && errno == ELOOP;
  if (fd < 0 && !is_link) {
    fail(ErrorKind::checkpoint, "'{}' cannot be created ({})", path, std::strerror(errno));
  }
  const std::string why = is_link ? "is a link" : why_no_lock_file(fd);
  if (why.empty()) {
    // Who can read a file can lock it, and keep the run from its owner. An older one may be open.
    (void)::fchmod(fd, 0600);
    return fd;
  }
  if (fd >= 0) ::close(fd);
  fail(ErrorKind::usage, "'{}' {}: it cannot be this run's lock; remove it, or name another folder",
       path, why);
}

bool try_lock(int fd) {
  int status = 0;
  do {
    status = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

}  // namespace

RunLock::RunLock(const std::string& run_dir, std::chrono::milliseconds patience)
    : path_(run_dir + "/lock") {
  constexpr std::chrono::milliseconds kPause(50);
  fd_ = open_lock(path_);
  const auto end = base::Clock::now() + patience;
  while (!try_lock(fd_)) {
    const int reason = errno;
    if (reason == EWOULDBLOCK && base::Clock::now() < end) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    const std::string holder = reason == EWOULDBLOCK ? read_holder(fd_) : "";
    ::close(fd_);
    if (holder.empty()) {
      fail(ErrorKind::checkpoint, "'{}' cannot be locked ({})", path_, std::strerror(reason));
    }
    fail(ErrorKind::usage,
         "--run-dir {} is in use by {}: wait for it, stop it, or name another folder", run_dir,
         holder);
  }
  write_holder(fd_);
}

RunLock::~RunLock() { ::close(fd_); }

bool RunLock::is_replaced() const {
  struct stat own {};
  struct stat there {};
  if (::fstat(fd_, &own) != 0 || ::lstat(path_.c_str(), &there) != 0) return false;
  return own.st_dev != there.st_dev || own.st_ino != there.st_ino;
}

}  // namespace dtrain::checkpoint::store
