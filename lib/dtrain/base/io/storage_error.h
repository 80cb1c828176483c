// Classifies failed file calls, and retries those that may succeed later.
#pragma once

#include <cerrno>
#include <functional>
#include <string>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain::base {

enum class StorageFault {
  passing,    ///< the disk, its server or the system's tables may answer later
  full,       ///< no room (disk, quota); later there may be
  too_large,  ///< the file meets a limit on file sizes
  permanent   ///< the same call would fail again
};

/// The one table of errno values.
[[nodiscard]] StorageFault storage_fault(int error);

/// Returns whether the same call may succeed later.
[[nodiscard]] inline bool may_pass(int error) {
  const StorageFault fault = storage_fault(error);
  return fault == StorageFault::passing || fault == StorageFault::full;
}

/// Returns whether the file takes no more bytes.
[[nodiscard]] inline bool is_full_disk(int error) {
  const StorageFault fault = storage_fault(error);
  return fault == StorageFault::full || fault == StorageFault::too_large;
}

/// A file call that failed: it tells nothing of what the file holds.
class FileError : public Error {
 public:
  using Error::Error;
};

/// A fault that may pass and has outlasted the retries. Its status lets a launcher start the job
/// again, whatever the file is.
class StorageError : public FileError {
 public:
  /// message: names the path. reason: the errno of the call, which decides how long a task is
  /// repeated; 0: there was no such call.
  explicit StorageError(const std::string& message, int reason = 0)
      : FileError(ErrorKind::checkpoint, message), reason_(reason) {}

  [[nodiscard]] int reason() const { return reason_; }

 private:
  int reason_;
};

/// Throws StorageError if `error` may pass, else FileError{kind}.
[[noreturn]] void fail_on_storage(ErrorKind kind, int error, const std::string& message);

/// How long a task is repeated, by the pauses between its tries; for 1 s where a limit of the
/// process itself is met.
inline constexpr Seconds kStoragePatience(30);

/// The pauses between the tries of one task. The patience begins with its first failure and is
/// spent by pauses alone: a call that takes long before it fails is repeated all the same.
///
/// Threads: one.
class StorageRetry {
 public:
  /// path: for the one warning; not needed where each try throws, since an error names its path.
  explicit StorageRetry(std::string path = {}) : path_(std::move(path)) {}

  /// Returns whether to try again after a try that failed with `error`: waits first, longer each
  /// time. False: the fault does not pass, or the patience is over; errno is `error` then.
  [[nodiscard]] bool again(int error);

  /// The same for a try that threw.
  [[nodiscard]] bool again(const StorageError& error);

 private:
  // obstacle: a line for the warning.
  bool pause(const std::string& obstacle, Seconds patience);

  std::string path_;
  Seconds waited_{0};
  Seconds next_{0.02};  // the next pause
};

/// Repeats `call` while it fails with a fault that may pass. It returns a negative number if it
/// fails, and errno says why. An fsync is never to be repeated: see write_anew.
template <typename Call>
auto with_patience(const std::string& path, const Call& call) {
  StorageRetry retry(path);
  for (;;) {
    const auto result = call();
    if (result >= 0 || !retry.again(errno)) return result;
  }
}

/// Repeats a task as a whole while it throws StorageError. number: of the try, from 0 on.
void retry_task(const std::function<void(int number)>& task);

}  // namespace dtrain::base
