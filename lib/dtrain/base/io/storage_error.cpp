#include "dtrain/base/io/storage_error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "dtrain/base/log.h"

namespace dtrain::base {

StorageFault storage_fault(int error) {
  switch (error) {
    case EAGAIN:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EINTR:
    case EIO:
    case EMFILE:
    case ENETDOWN:
    case ENETUNREACH:
    case ENFILE:
    case ENODEV:
    case ENOLCK:
    case ENOMEM:
    case ENOTCONN:  // a mount whose file server is gone
    case EREMOTEIO:
    case ESHUTDOWN:
    case ESTALE:
    case ETIMEDOUT:
      return StorageFault::transient;
    case EDQUOT:
    case ENOSPC:
      return StorageFault::full;
    case EFBIG:
      return StorageFault::too_large;
    default:
      return StorageFault::permanent;
  }
}

namespace {

// Waiting frees none of the files and memory that the process itself holds.
Seconds retry_limit(int error) {
  constexpr Seconds kWithOwnLimits(1);
  const bool is_own_limit = error == EMFILE || error == ENOMEM;
  return is_own_limit ? kWithOwnLimits : kStorageRetryLimit;
}

}  // namespace

void fail_on_storage(ErrorKind kind, int error, const std::string& message) {
  if (is_transient(error)) throw StorageError(message, error);
  throw FileError(kind, message);
}

bool StorageRetry::should_retry(int error) {
  if (error == EINTR) return true;
  const bool is_again =
      is_transient(error) &&
      pause(fmt::format("'{}': {}", path_, std::strerror(error)), retry_limit(error));
  errno = error;
  return is_again;
}

bool StorageRetry::should_retry(const StorageError& error) {
  return pause(error.what(), retry_limit(error.reason()));
}

bool StorageRetry::pause(const std::string& obstacle, Seconds limit) {
  constexpr Seconds kLongest(2);
  if (waited_ >= limit) return false;
  if (waited_ == Seconds(0)) {
    log_warning("{}; trying again for up to {:.0f} s", obstacle, limit.count());
  }
  const Seconds pause = std::min(next_, limit - waited_);
  std::this_thread::sleep_for(pause);
  waited_ += pause;
  next_ = std::min(2 * next_, kLongest);
  return true;
}

void retry_task(const std::function<void(int number)>& task) {
  StorageRetry retry;
  for (int number = 0;; ++number) {
    try {
      return task(number);
    } catch (const StorageError& error) {
      if (!retry.should_retry(error)) throw;
    }
  }
}

}  // namespace dtrain::base
