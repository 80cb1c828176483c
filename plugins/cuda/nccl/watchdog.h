// A thread that looks after the calls of all groups of a rank.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/nccl/group_state.h"

namespace dtrain::cuda {

/// Polls its groups until it is destroyed. If one fails, all are aborted: a rank trains no further
/// without one of them, and the memory of one is given back only when the kernels of all have
/// ended.
///
/// Threads: any.
class Watchdog {
 public:
  explicit Watchdog(c10::Device device);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(std::shared_ptr<GroupState> group);
  /// Returns when the group is not polled any more.
  void remove(const GroupState& group);
  /// Lets all groups fail, those that are added later, too.
  void fail_all(const std::exception_ptr& error);

 private:
  void run(c10::Device device);
  /// Returns what is to be aborted.
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> end_all();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<GroupState>> groups_;
  std::exception_ptr error_;  // of the first group that failed
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrain::cuda
