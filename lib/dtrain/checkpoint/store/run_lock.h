// Locks a run folder for one job.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "dtrain/base/io/descriptor.h"

namespace dtrain::checkpoint::store {

/// Holds RUN/lock until destruction or any end of the process. If the lock is held, retries for
/// `patience`, because a killed job may still be exiting. If the holder has ended or is on another
/// host, retries for two minutes, because a file server keeps the locks of a lost host until their
/// lease expires. A new lock file is removed again unless keep() is called, so a rejected start
/// leaves none.
///
/// The file must be a regular file of this user; links are not followed, and opening a FIFO or
/// device does not block.
///
/// Throws: Error{usage} naming the folder and the host and process that hold it, the owner of
///         another user's lock, or a file that cannot serve as a lock; Error{checkpoint} if the
///         file cannot be created; StorageError if the storage does not respond, or the lock stays
///         held by a holder that is not known to be alive.
class RunLock {
 public:
  explicit RunLock(const std::string& run_dir,
                   std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~RunLock();

  /// Keeps a new lock file after release.
  void keep() { remove_on_release_ = false; }

  /// Returns whether another file has replaced the lock file, so that another job may hold the
  /// lock. False if the file no longer exists.
  [[nodiscard]] bool is_replaced() const;

 private:
  std::string path_;
  base::Descriptor file_;
  bool remove_on_release_ = false;
};

/// Returns whether a job holds a run folder's lock: false if the lock was last held on this host
/// and is free; empty if it was never taken, cannot be examined, or was last held on another host.
/// Does not block and changes nothing.
[[nodiscard]] std::optional<bool> is_run_held(const std::string& run_dir);

}  // namespace dtrain::checkpoint::store
