#include "dtrain/comm/work.h"

namespace dtrain::comm {

void Completion::finish() {
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
  }
  changed_.notify_all();
}

void Completion::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

void Completion::wait() {
  std::unique_lock lock(mutex_);
  if (!completed_) {
    // Needs no deadline: the operation's executor ends it within its deadline.
    const auto start = base::Clock::now();
    changed_.wait(lock, [this] { return completed_; });
    ring_->add_wait(base::Clock::now() - start);
  }
  if (error_) std::rethrow_exception(error_);
}

bool Completion::is_completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

void Work::wait() { wait_host(); }

void Work::wait_host() {
  if (completion_) completion_->wait();
}

bool Work::is_completed() const { return !completion_ || completion_->is_completed(); }

}  // namespace dtrain::comm
