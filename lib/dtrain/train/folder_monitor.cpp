#include "dtrain/train/folder_monitor.h"

#include <chrono>
#include <utility>

#include "dtrain/base/path_kind.h"

namespace dtrain::train {

FolderMonitor::FolderMonitor(Options options) : options_(std::move(options)) {
  if (!options_.check && options_.stop_file.empty()) return;
  poll();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void FolderMonitor::rethrow_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void FolderMonitor::poll() noexcept {
  if (!options_.stop_file.empty() && base::is_there(options_.stop_file)) stop_requested_ = true;
  if (!options_.check) return;
  try {
    options_.check();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void FolderMonitor::run(const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kInterval(200);
  std::unique_lock lock(mutex_);
  while (!failure_ && !stopped_.wait_for(lock, stop, kInterval, [] { return false; }) &&
         !stop.stop_requested()) {
    lock.unlock();
    poll();
    lock.lock();
  }
}

}  // namespace dtrain::train
