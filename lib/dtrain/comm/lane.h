// A thread that carries out tasks one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace dtrain::comm {

/// Carries out tasks in the order of post(), in a thread of its own that starts with the first one.
///
/// Threads: post from any thread. The destructor carries out what is left, then ends the thread.
class Lane {
 public:
  Lane() = default;
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// `task` must not throw.
  ///
  /// Throws: std::system_error when the thread cannot be started; the task is then not kept.
  void post(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrain::comm
