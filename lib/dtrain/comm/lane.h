// A thread that executes tasks in order; a thread that waits for a task may execute it itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <thread>
#include <utility>

namespace dtrain::comm {

/// Work that a Lane carries out once.
class Task {
 public:
  virtual ~Task() = default;
  virtual void carry_out() noexcept = 0;
};

/// Returns the pool that calls and tasks are allocated from. Ended ones are reused, so that ranks
/// that repeat the same calls allocate nothing. Lives as long as the process.
///
/// Threads: any.
[[nodiscard]] std::pmr::memory_resource& call_memory();

/// The tasks of a lane, which are carried out one at a time, in the order in which they came.
///
/// Threads: any.
class TaskQueue {
 public:
  /// Returns the task's number: 1 for the first.
  std::uint64_t push(std::shared_ptr<Task> task);
  /// Executes queued tasks up to task `number` in the calling thread: for a small task that is
  /// faster than waking the lane's thread. Returns at once if another thread is executing a task.
  void help_with(std::uint64_t number);
  /// Waits for a task and carries it out. Returns false once stopped and empty.
  bool run_next();
  void stop();

 private:
  void run_front(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::pmr::deque<std::shared_ptr<Task>> tasks_{&call_memory()};
  std::uint64_t pushed_ = 0;
  std::uint64_t taken_ = 0;
  bool is_running_ = false;
  bool is_stopping_ = false;
};

/// Carries out tasks in the order of post(), in a thread of its own that starts with the first one.
///
/// Threads: post from any thread. The destructor carries out what is left, then ends the thread.
class Lane {
 public:
  Lane() = default;
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Returns the task's number in queue().
  ///
  /// Throws: std::system_error when the thread cannot be started; the task is then not kept.
  std::uint64_t post(std::shared_ptr<Task> task);
  /// Posts a function, which must not throw.
  template <typename Function>
  void call(Function function) {
    post(std::make_shared<FunctionTask<Function>>(std::move(function)));
  }

  /// Whoever waits for a task may help, even when the lane is gone.
  [[nodiscard]] const std::shared_ptr<TaskQueue>& queue() const noexcept { return queue_; }

 private:
  template <typename Function>
  class FunctionTask final : public Task {
   public:
    explicit FunctionTask(Function function) : function_(std::move(function)) {}
    void carry_out() noexcept override { function_(); }

   private:
    Function function_;
  };

  const std::shared_ptr<TaskQueue> queue_ = std::make_shared<TaskQueue>();
  std::mutex starting_;
  std::thread thread_;
};

}  // namespace dtrain::comm
