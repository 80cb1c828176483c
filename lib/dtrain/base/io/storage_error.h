// Classifies failed file operations, and retries transient failures.
#pragma once

#include <cerrno>
#include <functional>
#include <string>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain::base {

/// Why a file operation failed, which determines whether it is retried.
enum class StorageFault {
  transient,  ///< the disk, its server or a system table may recover
  full,       ///< no space (disk, quota), which may be freed later
  too_large,  ///< a limit on file sizes is reached
  permanent   ///< the same call would fail again
};

/// Classifies an errno value.
[[nodiscard]] StorageFault storage_fault(int error);

/// Returns whether the same call may succeed later.
[[nodiscard]] inline bool is_transient(int error) {
  const StorageFault fault = storage_fault(error);
  return fault == StorageFault::transient || fault == StorageFault::full;
}

/// Returns whether no more bytes can be written: no space, or a size limit is reached.
[[nodiscard]] inline bool is_full_disk(int error) {
  const StorageFault fault = storage_fault(error);
  return fault == StorageFault::full || fault == StorageFault::too_large;
}

/// A failed file operation, as opposed to invalid content.
class FileError : public Error {
 public:
  using Error::Error;
};

/// A transient fault that outlasted the retries. Its exit status makes a launcher restart the job,
/// for any kind of file.
class StorageError : public FileError {
 public:
  /// message: names the path. reason: the errno of the call, which determines how long a task is
  /// retried; 0: unknown.
  explicit StorageError(const std::string& message, int reason = 0)
      : FileError(ErrorKind::checkpoint, message), reason_(reason) {}

  [[nodiscard]] int reason() const { return reason_; }

 private:
  int reason_;
};

/// Throws StorageError if is_transient(error), else FileError{kind}.
[[noreturn]] void fail_on_storage(ErrorKind kind, int error, const std::string& message);

/// Maximum sum of the pauses between a task's attempts; 1 s if a limit of the process is the cause.
inline constexpr Seconds kStorageRetryLimit(30);

/// Retry back-off for one task. Only the pauses count towards the limit, so that a call that takes
/// long before it fails is retried as well.
///
/// Threads: one.
class StorageRetry {
 public:
  /// path: named in the warning, which is printed once. May be empty if the attempts throw errors
  /// that name the path.
  explicit StorageRetry(std::string path = {}) : path_(std::move(path)) {}

  /// Waits with exponential back-off after a failure and returns true to retry. Returns false, with
  /// errno set to `error`, if the fault is not transient or the limit is reached.
  [[nodiscard]] bool should_retry(int error);

  /// The same for an attempt that threw.
  [[nodiscard]] bool should_retry(const StorageError& error);

 private:
  // obstacle: the reason, a line of the warning.
  bool pause(const std::string& obstacle, Seconds limit);

  std::string path_;
  Seconds waited_{0};
  Seconds next_{0.02};  // the next pause
};

/// Repeats `call` while it fails with a transient fault. call: returns a negative number and sets
/// errno on failure; must not be fsync, see write_with_retries.
template <typename Call>
auto retry_transient(const std::string& path, const Call& call) {
  StorageRetry retry(path);
  for (;;) {
    const auto result = call();
    if (result >= 0 || !retry.should_retry(errno)) return result;
  }
}

/// Repeats a whole task while it throws StorageError. number: the attempt, from 0.
void retry_task(const std::function<void(int number)>& task);

}  // namespace dtrain::base
