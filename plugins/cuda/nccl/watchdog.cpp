#include "cuda/nccl/watchdog.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

namespace dtrain::cuda {
namespace {

// The poll interval, which bounds how late errors and completions are recorded.
constexpr std::chrono::milliseconds kPeriod{5};

}  // namespace

Watchdog::Watchdog(c10::Device device) : thread_([this, device] { run(device); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(std::shared_ptr<GroupState> group) {
  const std::lock_guard lock(mutex_);
  if (error_) group->error().set(error_);
  groups_.push_back(std::move(group));
}

void Watchdog::remove(const GroupState& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const auto& each) { return each.get() == &group; });
}

void Watchdog::fail_all(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  for (const auto& group : groups_) group->error().set(error);
}

void Watchdog::run(c10::Device device) {
  cudaSetDevice(device.index());
  // Event queries of this thread must not invalidate a graph capture in another thread.
  auto mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    bool has_failed = false;
    for (const auto& group : groups_) {
      if (!group->poll()) continue;
      has_failed = true;
      if (!error_) error_ = group->error().get();
    }
    if (has_failed) {
      const auto communicators = end_all();
      lock.unlock();  // a waiter could otherwise block work that the abort waits for
      abort_together(communicators);
      lock.lock();
    }
    changed_.wait_for(lock, kPeriod);
  }
}

std::vector<std::shared_ptr<Communicator>> Watchdog::end_all() {
  // Records the error in all groups before the first kernel is aborted.
  for (const auto& group : groups_) group->error().set(error_);
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (const auto& group : groups_) {
    const auto of_group = group->end();
    communicators.insert(communicators.end(), of_group.begin(), of_group.end());
  }
  return communicators;
}

}  // namespace dtrain::cuda
