// Locks a run folder for one job.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "dtrain/base/io/descriptor.h"

namespace dtrain::checkpoint::store {

/// Holds RUN/lock from construction to destruction, or to the end of the process, however it ends.
/// A lock that is held is tried again for `patience`, because a job that was just killed may still
/// be on its way out; and for two minutes if its holder cannot be seen from this host or has ended,
/// because a file server keeps the locks of a host that is gone until their lease runs out. A file
/// that was not there before is removed again, unless keep() is called: a start that is refused
/// leaves none.
///
/// The file must be a regular one of this user: it is never reached through a link, and a FIFO or
/// device is not waited for.
///
/// Throws: Error{usage} naming the folder and the host and process that hold it, the owner of a
///         lock that is another user's, or the file if it is none that can be locked;
///         Error{checkpoint} if it cannot be made; StorageError if the storage does not answer, or
///         the lock of a holder that is not known to live stays.
class RunLock {
 public:
  explicit RunLock(const std::string& run_dir,
                   std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~RunLock();

  void keep() { is_for_removal_ = false; }

  /// Returns whether the path leads to a file other than the locked one, which another job may
  /// hold. False where there is no file any more.
  [[nodiscard]] bool is_replaced() const;

 private:
  std::string path_;
  base::Descriptor file_;
  bool is_for_removal_ = false;
};

/// Whether a job holds a run folder: false if the lock was taken on this host and nobody holds it
/// any more; nothing if no lock was ever taken, it cannot be examined, or it was taken on another
/// host. Asks without waiting, and leaves everything as it is.
[[nodiscard]] std::optional<bool> is_run_held(const std::string& run_dir);

}  // namespace dtrain::checkpoint::store
