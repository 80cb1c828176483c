#include "dtrain/checkpoint/store/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"

namespace dtrain::checkpoint::store {
namespace {

using base::ErrorKind;
using base::fail;

// The two lines of a lock file.
struct Holder {
  std::string name;   // "process 12 on host a"
  std::string start;  // as start_of; older versions write no such line
};

// The file may not have been written yet.
Holder read_holder(int fd) {
  std::array<char, 512> bytes{};
  const ssize_t length = ::pread(fd, bytes.data(), bytes.size(), 0);
  if (length <= 0) return {.name = "a process that has just started", .start = {}};
  const std::string_view text(bytes.data(), static_cast<std::size_t>(length));
  const std::size_t end = std::min(text.find('\n'), text.size());
  return {.name = base::printable(text.substr(0, end)),
          .start = std::string(text.substr(std::min(end + 1, text.size())))};
}

// Returns when a process of this host started: the boot, and clock ticks since then. A process with
// the same PID but another start is not the same. Empty if it cannot be read.
std::string start_of(int process) {
  constexpr int kStartField = 20;  // of /proc/PID/stat, counted after the name
  std::string boot;
  std::string line;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", process)), line);
  std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string field;
  for (int index = 0; index < kStartField; ++index) fields >> field;
  return fields ? boot + " " + field : "";
}

// Tries to take the lock. Returns 0 or an errno.
int take_lock(int fd) {
  int status = 0;
  do {
    status = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0 ? 0 : errno;
}

std::string host_text() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format(" on host {}", host.data());
}

// A file server frees the locks of a lost host when its lease expires.
constexpr std::chrono::seconds kLeasePatience(120);

// Returns false if the holder is on another host or has ended: on a network file system the lock
// may outlive it.
bool is_alive(const Holder& holder) {
  constexpr std::string_view kProcess = "process ";
  const std::string& name = holder.name;
  if (!name.starts_with(kProcess)) return true;  // it has just started
  if (!name.ends_with(host_text())) return false;
  int process = 0;
  std::from_chars(name.data() + kProcess.size(), name.data() + name.size(), process);
  if (process <= 0 || (::kill(process, 0) != 0 && errno != EPERM)) return false;
  // In a restarted container, another process often has this PID: perhaps this one.
  return holder.start.empty() || holder.start == start_of(process);
}

void write_holder(int fd) {
  const std::string text =
      fmt::format("process {}{}\n{}", ::getpid(), host_text(), start_of(::getpid()));
  // A failure affects only messages and the wait for a lost holder.
  if (::ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const auto written = ::pwrite(fd, text.data(), text.size(), 0);
  }
}

// Anyone who can write to the folder may have created the file.
bool is_regular(const std::string& path, int fd) {
  struct stat status {};
  if (base::retry_transient(path, [&] { return ::fstat(fd, &status); }) != 0) {
    const int reason = errno;
    base::fail_on_storage(ErrorKind::usage, reason,
                          fmt::format("'{}' cannot be examined ({})", path, std::strerror(reason)));
  }
  return S_ISREG(status.st_mode);
}

// Rejects another user's lock file, which a job may hold. Root can test the lock; a user who may
// not open the file (`file` is empty) cannot.
void refuse_lock_of_another(const std::string& path, const base::Descriptor& file) {
  struct stat status {};
  const auto examine = [&] {
    return file ? ::fstat(file.get(), &status) : ::lstat(path.c_str(), &status);
  };
  if (base::retry_transient(path, examine) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid == ::geteuid())
    return;
  if (file && take_lock(file.get()) == EWOULDBLOCK) {
    fail(ErrorKind::usage,
         "'{}' is held by {}, a job of user {}: wait for it, stop it, or name another folder", path,
         read_holder(file.get()).name, status.st_uid);
  }
  const std::string folder = path.substr(0, path.rfind('/'));
  fail(ErrorKind::usage,
       "'{}' belongs to user {}, but this is user {}: run as that user, name another folder, or{} "
       "take over the run: chown -R {} {}",
       path, status.st_uid, ::geteuid(), file ? "" : ", if no job of that user uses it,",
       ::geteuid(), folder);
}

// Opens the lock file without following links or blocking on a FIFO; writes nothing. is_new: set if
// this call created the file.
base::Descriptor open_lock(const std::string& path, bool& is_new) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  base::Descriptor file(base::retry_transient(path, [&] {
    const int made = ::open(path.c_str(), kFlags | O_EXCL, 0600);
    is_new |= made >= 0;
    return made < 0 && errno == EEXIST ? ::open(path.c_str(), kFlags, 0600) : made;
  }));
  const int reason = file ? 0 : errno;
  if (file || reason == EACCES) refuse_lock_of_another(path, file);
  if (!file && reason != ELOOP) {
    base::fail_on_storage(ErrorKind::checkpoint, reason,
                          fmt::format("'{}' cannot be created ({})", path, std::strerror(reason)));
  }
  if (file && is_regular(path, file.get())) {
    // A user who can read the file could lock it. Older versions created it readable.
    (void)::fchmod(file.get(), 0600);
    return file;
  }
  fail(ErrorKind::usage,
       "'{}' {}, so it cannot be this run's lock; remove it, or name another folder", path,
       file ? "is not a regular file" : "is a link");
}

// Returns whether the path refers to the open file.
bool leads_to(const std::string& path, int fd) {
  struct stat own {};
  struct stat there {};
  const auto examine = [&] {
    return ::fstat(fd, &own) == 0 && ::lstat(path.c_str(), &there) == 0 ? 0 : -1;
  };
  return base::retry_transient(path, examine) == 0 && own.st_dev == there.st_dev &&
         own.st_ino == there.st_ino;
}

// Throws if the holder is alive, or if the wait for a dead holder's lock is_over.
void refuse_holder(const std::string& run_dir, const std::string& path, const Holder& holder,
                   bool is_over) {
  if (is_alive(holder)) {
    fail(ErrorKind::usage,
         "--run-dir {} is in use by {}: wait for it, stop it, or name another folder", run_dir,
         holder.name);
  }
  if (is_over) {
    throw base::StorageError(
        fmt::format("'{}' has been locked by {} for {} s; end that process, or restart its host",
                    path, holder.name, kLeasePatience.count()));
  }
}

// Opens and locks the file at `path`, waiting if it is held. is_new: as open_lock.
base::Descriptor locked_file(const std::string& run_dir, const std::string& path,
                             std::chrono::milliseconds patience, bool& is_new) {
  const base::Clock::time_point start = base::Clock::now();
  base::StorageRetry retry(path);
  bool has_warned = false;
  for (;;) {
    base::Descriptor file = open_lock(path, is_new);
    int reason = take_lock(file.get());
    for (; reason == EWOULDBLOCK; reason = take_lock(file.get())) {
      const auto waited = base::Clock::now() - start;
      if (waited >= patience) {
        const Holder holder = read_holder(file.get());
        refuse_holder(run_dir, path, holder, waited >= kLeasePatience);
        if (!std::exchange(has_warned, true)) {
          base::log_warning(
              "'{}' is locked by {}, which has ended or is on another host; waiting "
              "up to {} s",
              path, holder.name, kLeasePatience.count());
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    // If the path refers to another file, the last holder removed the locked one: try again.
    if (reason == 0 && leads_to(path, file.get())) return file;
    if (reason != 0 && !retry.should_retry(reason)) {
      base::fail_on_storage(ErrorKind::checkpoint, reason,
                            fmt::format("'{}' cannot be locked ({})", path, std::strerror(reason)));
    }
  }
}

}  // namespace

RunLock::RunLock(const std::string& run_dir, std::chrono::milliseconds patience)
    : path_(run_dir + "/lock") {
  bool is_new = false;
  file_ = locked_file(run_dir, path_, patience, is_new);
  remove_on_release_ = is_new;
  write_holder(file_.get());
}

std::optional<bool> is_run_held(const std::string& run_dir) {
  const base::Descriptor file(::open((run_dir + "/lock").c_str(),
                                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  // A shared lock, held briefly: a job that starts meanwhile retries.
  if (::flock(file.get(), LOCK_SH | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? std::optional(true) : std::nullopt;
  }
  return read_holder(file.get()).name.ends_with(host_text()) ? std::optional(false) : std::nullopt;
}

RunLock::~RunLock() {
  if (remove_on_release_ && leads_to(path_, file_.get())) ::unlink(path_.c_str());
}

bool RunLock::is_replaced() const {
  struct stat own {};
  struct stat there {};
  if (::fstat(file_.get(), &own) != 0 || ::lstat(path_.c_str(), &there) != 0) return false;
  return own.st_dev != there.st_dev || own.st_ino != there.st_ino;
}

}  // namespace dtrain::checkpoint::store
