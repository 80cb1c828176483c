// A thread that looks after the calls of all groups of a rank.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/group_state.h"

namespace dtrain::cuda {

/// Polls its groups until it is destroyed.
///
/// Threads: any.
class Watchdog {
 public:
  /// on_failure: called in the watchdog's thread with the reason for which a group was aborted.
  Watchdog(c10::Device device, std::function<void(const std::string&)> on_failure);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(std::shared_ptr<GroupState> group);
  /// Returns when the group is not polled any more.
  void remove(const GroupState& group);
  /// Aborts all groups.
  void fail_all(const std::exception_ptr& error);

 private:
  void run(c10::Device device);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<GroupState>> groups_;
  std::function<void(const std::string&)> on_failure_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrain::cuda
