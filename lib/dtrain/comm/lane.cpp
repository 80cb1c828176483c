#include "dtrain/comm/lane.h"

namespace dtrain::comm {

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Lane::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Lane::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }  // what the task holds is released outside the lock
    lock.lock();
  }
}

}  // namespace dtrain::comm
