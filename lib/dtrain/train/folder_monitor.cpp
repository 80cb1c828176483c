#include "dtrain/train/folder_monitor.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

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
  std::error_code unseen;  // by a disk that does not answer: the next look may see it
  const std::string& stop_file = options_.stop_file;
  if (!stop_file.empty() && std::filesystem::exists(stop_file, unseen)) stop_requested_ = true;
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
