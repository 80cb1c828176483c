// One job to a run folder.
#pragma once

#include <chrono>
#include <string>

namespace dtrain::checkpoint::store {

/// Holds RUN/lock from construction to destruction, or to the end of the process, however it ends.
/// A lock that is held is tried again for `patience`, because a job that was just killed may still
/// be on its way out.
///
/// Throws: Error{usage} naming the folder and the host and process that hold it; Error{checkpoint}
///         if the file cannot be made.
class RunLock {
 public:
  explicit RunLock(const std::string& run_dir,
                   std::chrono::milliseconds patience = std::chrono::seconds(5));
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  int fd_ = -1;
};

}  // namespace dtrain::checkpoint::store
