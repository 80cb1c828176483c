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
#include "dtrain/base/printable.h"

namespace dtrain::checkpoint::store {
namespace {

using base::ErrorKind;
using base::fail;

// "process 12 on host a", as the holder wrote it; it may be just about to.
std::string read_holder(int fd) {
  std::array<char, 512> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  return length > 0 ? base::printable({text.data(), static_cast<std::size_t>(length)})
                    : std::string("a process that has just begun");
}

bool try_lock(int fd) {
  int status = 0;
  do {
    status = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

std::string host_text() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format(" on host {}", host.data());
}

void write_holder(int fd) {
  const std::string text = fmt::format("process {}{}", ::getpid(), host_text());
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
  return {};
}

// The lock of another user's run is never to be removed: a job may hold it. Root can ask; a user
// who may not open the file (none) cannot.
void refuse_lock_of_another(const std::string& path, const base::Descriptor& file) {
  struct stat status {};
  const bool known = (file ? ::fstat(file.get(), &status) : ::lstat(path.c_str(), &status)) == 0;
  if (!known || !S_ISREG(status.st_mode) || status.st_uid == ::geteuid()) return;
  if (file && !try_lock(file.get()) && errno == EWOULDBLOCK) {
    fail(ErrorKind::usage,
         "'{}' is held by {}, a job of user {}: wait for it, stop it, or name another folder", path,
         read_holder(file.get()), status.st_uid);
  }
  const std::string folder = path.substr(0, path.rfind('/'));
  fail(ErrorKind::usage,
       "'{}' belongs to user {}, and this is user {}: run as that user, name another folder, or{} "
       "have the run made yours: chown -R {} {}",
       path, status.st_uid, ::geteuid(), file ? "" : ", if no job of that user uses it,",
       ::geteuid(), folder);
}

// Follows no link and does not block on a FIFO. Throws before anything is written. is_new: set to
// whether this call created the file.
base::Descriptor open_lock(const std::string& path, bool& is_new) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  base::Descriptor file(::open(path.c_str(), kFlags | O_EXCL, 0600));
  is_new = static_cast<bool>(file);
  if (!file && errno == EEXIST) file = base::Descriptor(::open(path.c_str(), kFlags, 0600));
  const int reason = file ? 0 : errno;
  const bool is_link = reason == ELOOP;
  if (file || reason == EACCES) refuse_lock_of_another(path, file);
  if (!file && !is_link) {
    fail(ErrorKind::checkpoint, "'{}' cannot be created ({})", path, std::strerror(reason));
  }
  const std::string why = is_link ? "is a link" : why_no_lock_file(file.get());
  if (why.empty()) {
    // Who can read a file can lock it, and keep the run from its owner. An older one may be open.
    (void)::fchmod(file.get(), 0600);
    return file;
  }
  fail(ErrorKind::usage, "'{}' {}: it cannot be this run's lock; remove it, or name another folder",
       path, why);
}

// True if the path leads to the open file.
bool leads_to(const std::string& path, int fd) {
  struct stat own {};
  struct stat there {};
  return ::fstat(fd, &own) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

void wait_for_lock(const std::string& run_dir, const std::string& path, int fd,
                   base::Clock::time_point end) {
  constexpr std::chrono::milliseconds kPause(50);
  while (!try_lock(fd)) {
    const int reason = errno;
    if (reason == EWOULDBLOCK && base::Clock::now() < end) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    if (reason != EWOULDBLOCK) {
      fail(ErrorKind::checkpoint, "'{}' cannot be locked ({})", path, std::strerror(reason));
    }
    fail(ErrorKind::usage,
         "--run-dir {} is in use by {}: wait for it, stop it, or name another folder", run_dir,
         read_holder(fd));
  }
}

}  // namespace

RunLock::RunLock(const std::string& run_dir, std::chrono::milliseconds patience)
    : path_(run_dir + "/lock") {
  const auto end = base::Clock::now() + patience;
  bool is_new = false;
  do {  // retry if the last holder removed the file, since another job may have created a new one
    file_ = open_lock(path_, is_new);
    wait_for_lock(run_dir, path_, file_.get(), end);
  } while (!leads_to(path_, file_.get()));
  is_for_removal_ = is_new;
  write_holder(file_.get());
}

RunHolder find_run_holder(const std::string& run_dir) {
  const base::Descriptor file(::open((run_dir + "/lock").c_str(),
                                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!file || !why_no_lock_file(file.get()).empty()) return RunHolder::unknown;
  // A shared lock, held briefly: a job that starts meanwhile retries.
  const bool is_free = ::flock(file.get(), LOCK_SH | LOCK_NB) == 0;
  if (!is_free) return errno == EWOULDBLOCK ? RunHolder::alive : RunHolder::unknown;
  return read_holder(file.get()).ends_with(host_text()) ? RunHolder::gone : RunHolder::unknown;
}

RunLock::~RunLock() {
  if (is_for_removal_ && leads_to(path_, file_.get())) ::unlink(path_.c_str());
}

bool RunLock::is_replaced() const {
  struct stat own {};
  struct stat there {};
  if (::fstat(file_.get(), &own) != 0 || ::lstat(path_.c_str(), &there) != 0) return false;
  return own.st_dev != there.st_dev || own.st_ino != there.st_ino;
}

}  // namespace dtrain::checkpoint::store
