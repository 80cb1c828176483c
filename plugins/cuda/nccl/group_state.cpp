#include "cuda/nccl/group_state.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::cuda {
namespace {

std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
}

}  // namespace

comm::Work GroupState::post_on_host(comm::Operation operation) {
  const std::lock_guard lock(host_mutex_);
  return host_->post(std::move(operation));
}

void GroupState::add(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) abort_together({&communicator, 1});
  communicators_.push_back(std::move(communicator));
}

void GroupState::watch(const c10::Stream& stream, std::shared_ptr<DeviceCall> call) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return ring_.fail(call->record().number);  // nothing else would remove it
  calls_.add(stream, std::move(call));
}

bool GroupState::has_pending() const {
  if (num_being_posted_ > 0) return true;
  const std::lock_guard lock(mutex_);
  return !calls_.is_empty();
}

bool GroupState::poll() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    calls_.check();
    if (!error_.is_set()) check_communicators();
  } catch (const std::exception& caught) {
    const std::string text = caught.what();
    const comm::GroupIdentity& identity = config_.identity;
    const auto rank = identity.world_ranks[static_cast<std::size_t>(identity.rank)];
    error_.set(std::make_exception_ptr(
        base::Error(base::ErrorKind::device,
                    fmt::format("rank {} on {}, group '{}': {}", rank, config_.device.str(),
                                identity.name, text.substr(0, text.find('\n'))))));
  }
  return error_.is_set() && !has_ended_;
}

std::vector<std::shared_ptr<Communicator>> GroupState::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_ended_, true)) return {};
  calls_.fail_all();
  host_->abort(error_text(error_.get()));
  return communicators_;
}

void GroupState::close() noexcept {
  if (error_.is_set()) abort_together(end());
  const std::lock_guard lock(mutex_);
  communicators_.clear();
}

void GroupState::record_completions() {
  // Destroying a call's events switches to their device and back, and switching back creates a
  // context on the thread's current device, which in a host thread is GPU 0.
  const c10::DeviceGuard on(config_.device);
  const std::lock_guard lock(mutex_);
  calls_.record_completions();
}

void GroupState::check_communicators() {
  for (const auto& communicator : communicators_) {
    const std::string found = communicator->poll();
    if (!found.empty()) error_.set(found + "; see the output of the other ranks for the cause");
  }
}

}  // namespace dtrain::cuda
