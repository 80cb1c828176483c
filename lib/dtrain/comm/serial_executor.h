// Executes tasks in order in one thread; a thread that waits for a task may execute it itself.
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

/// A unit of work that a SerialExecutor executes once.
class Task {
 public:
  virtual ~Task() = default;
  virtual void execute() noexcept = 0;
};

/// The memory pool of calls and tasks. It reuses freed blocks, so that repeated calls allocate
/// nothing. Lives as long as the process.
///
/// Threads: any.
[[nodiscard]] std::pmr::memory_resource& call_memory();

/// The queue of an executor's tasks, executed one at a time in FIFO order.
///
/// Threads: any.
class TaskQueue {
 public:
  /// Returns the task's number: 1 for the first.
  std::uint64_t push(std::shared_ptr<Task> task);
  /// Executes queued tasks up to task `number` in the calling thread, which for small tasks is
  /// faster than waking the executor's thread. Returns at once if another thread is executing a
  /// task.
  void help_with(std::uint64_t number);
  /// Waits for a task and executes it. Returns false once stopped and empty.
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

/// Executes tasks in the order of post(), in a thread that starts with the first task.
///
/// Threads: post from any thread. The destructor executes the remaining tasks, then ends the
///          thread.
class SerialExecutor {
 public:
  SerialExecutor() = default;
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// Returns the task's number in queue().
  ///
  /// Throws: std::system_error if the thread cannot be started; the task is then dropped.
  std::uint64_t post(std::shared_ptr<Task> task);
  /// Posts a function, which must not throw.
  template <typename Function>
  void call(Function function) {
    post(std::make_shared<FunctionTask<Function>>(std::move(function)));
  }

  /// The queue, through which waiting threads may help, even after the executor is destroyed.
  [[nodiscard]] const std::shared_ptr<TaskQueue>& queue() const noexcept { return queue_; }

 private:
  template <typename Function>
  class FunctionTask final : public Task {
   public:
    explicit FunctionTask(Function function) : function_(std::move(function)) {}
    void execute() noexcept override { function_(); }

   private:
    Function function_;
  };

  const std::shared_ptr<TaskQueue> queue_ = std::make_shared<TaskQueue>();
  std::mutex starting_;
  std::thread thread_;
};

}  // namespace dtrain::comm
