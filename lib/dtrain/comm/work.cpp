#include "dtrain/comm/work.h"

#include "dtrain/base/trace.h"

namespace dtrain::comm {

void HostCompletion::end(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

void HostCompletion::wait_host() {
  std::unique_lock lock(mutex_);
  if (!completed_) {
    const auto start = base::Clock::now();
    const base::Span span("wait", base::TracePart::wait,
                          {"call", static_cast<std::int64_t>(number_)});
    lock.unlock();
    help();
    lock.lock();
    // Needs no deadline: the operation's executor ends it within its deadline.
    changed_.wait(lock, [this] { return completed_; });
    ring_->add_wait(base::Clock::now() - start);
  }
  if (error_) std::rethrow_exception(error_);
}

bool HostCompletion::is_completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

}  // namespace dtrain::comm
