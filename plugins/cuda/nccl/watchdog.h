// A thread that polls all NCCL groups of a rank and aborts all of them if one fails.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/nccl/group_state.h"

namespace dtrain::cuda {

/// Polls its groups until it is destroyed. If one fails, it aborts all: the rank needs every group
/// to continue, and freeing the memory of one communicator waits for the kernels of all.
///
/// Threads: any.
class Watchdog {
 public:
  explicit Watchdog(c10::Device device);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(std::shared_ptr<GroupState> group);
  /// Returns when the group is no longer being polled.
  void remove(const GroupState& group);
  /// Fails all groups, including those added later.
  void fail_all(const std::exception_ptr& error);

 private:
  void run(c10::Device device);
  /// Ends all groups; returns the communicators to abort.
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> end_all();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<GroupState>> groups_;
  std::exception_ptr error_;  // of the first group that failed
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrain::cuda
