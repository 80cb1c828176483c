#include "dtrain/comm/serial_executor.h"

namespace dtrain::comm {

std::pmr::memory_resource& call_memory() {
  // Never destroyed: a Work may outlive everything else.
  static auto* const memory =
      new std::pmr::synchronized_pool_resource(std::pmr::new_delete_resource());
  return *memory;
}

std::uint64_t TaskQueue::push(std::shared_ptr<Task> task) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    number = ++pushed_;
  }
  changed_.notify_one();
  return number;
}

void TaskQueue::run_front(std::unique_lock<std::mutex>& lock) {
  {
    const std::shared_ptr<Task> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++taken_;
    is_running_ = true;
    lock.unlock();
    task->execute();
  }  // the task is destroyed outside the lock
  lock.lock();
  is_running_ = false;
}

void TaskQueue::help_with(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  while (taken_ < number && !is_running_) run_front(lock);
  // Wake the executor's thread, which slept while this thread executed tasks.
  if (!is_running_ && (is_stopping_ || !tasks_.empty())) changed_.notify_one();
}

bool TaskQueue::run_next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_running_ && (is_stopping_ || !tasks_.empty()); });
  if (tasks_.empty()) return false;
  run_front(lock);
  return true;
}

void TaskQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_one();
}

SerialExecutor::~SerialExecutor() {
  queue_->stop();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t SerialExecutor::post(std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(starting_);
    if (!thread_.joinable()) {
      thread_ = std::thread([queue = queue_] {
        while (queue->run_next()) {
        }
      });
    }
  }
  return queue_->push(std::move(task));
}

}  // namespace dtrain::comm
