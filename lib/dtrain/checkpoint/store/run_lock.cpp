#include "dtrain/checkpoint/store/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
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

bool try_lock(int fd) {
  int status = 0;
  do {
    status = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

}  // namespace

RunLock::RunLock(const std::string& run_dir, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause(50);
  const std::string path = run_dir + "/lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0)
    fail(ErrorKind::checkpoint, "'{}' cannot be created ({})", path, std::strerror(errno));
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
      fail(ErrorKind::checkpoint, "'{}' cannot be locked ({})", path, std::strerror(reason));
    }
    fail(ErrorKind::usage,
         "--run-dir {} is in use by {}: wait for it, stop it, or name another folder", run_dir,
         holder);
  }
  write_holder(fd_);
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace dtrain::checkpoint::store
