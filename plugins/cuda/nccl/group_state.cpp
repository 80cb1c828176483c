#include "cuda/nccl/group_state.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::cuda {
namespace {

using base::ErrorKind;

// How long to sleep between polls of a call that the host waits for.
constexpr std::chrono::microseconds kEndPause{20};

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
}

}  // namespace

DeviceCall::DeviceCall(comm::CallRecord record, std::shared_ptr<GroupState> group)
    : record_(std::move(record)),
      group_(std::move(group)),
      ready_(group_->device().type()),
      end_(group_->device().type()) {
  ready_.record(current_stream(group_->device()));
}

DeviceCall::~DeviceCall() {
  if (has_ended_) return;
  try {  // no stream has waited for the call
    for (const at::Tensor& tensor : tensors_) tensor.record_stream(*stream_);
  } catch (const std::exception&) {  // the device itself has failed
  }
}

void DeviceCall::begin_on(const c10::Stream& stream, std::vector<at::Tensor> tensors) {
  ready_.block(stream);
  const std::lock_guard lock(mutex_);
  stream_ = stream;
  tensors_ = std::move(tensors);
}

void DeviceCall::release() {
  const std::lock_guard lock(mutex_);
  tensors_.clear();
}

void DeviceCall::end_on(const c10::Stream& stream) {
  end_.record(stream);
  is_posted_ = true;
}

void DeviceCall::wait_until_posted() const {
  while (!is_posted_) {
    group_->rethrow_error();
    std::this_thread::sleep_for(kEndPause);
  }
}

void DeviceCall::wait() {
  if (!is_posted_) {  // the connection to the peer is still being established
    const auto start = base::Clock::now();
    wait_until_posted();
    group_->ring().add_wait(base::Clock::now() - start);
  }
  if (!has_ended_) group_->rethrow_error();
  end_.block(current_stream(group_->device()));
  release();
}

void DeviceCall::wait_host() {
  // A caller of this result also reads others, and a rank's calls are aborted together.
  group_->rethrow_error();
  if (has_ended()) return release();
  const auto start = base::Clock::now();
  wait_until_posted();
  while (!has_ended()) {
    // The watchdog aborts overdue calls.
    group_->rethrow_error();
    std::this_thread::sleep_for(kEndPause);
  }
  group_->ring().add_wait(base::Clock::now() - start);
  release();
}

bool DeviceCall::has_ended() const {
  if (has_ended_) return true;
  if (!is_posted_ || !end_.query()) return false;
  // An error is recorded before kernels are aborted, so without one this kernel completed normally.
  if (group_->error()) return false;
  has_ended_ = true;
  return true;
}

bool DeviceCall::is_completed() const { return has_ended() || group_->error() != nullptr; }

std::exception_ptr GroupState::error() const {
  if (!has_failed_) return nullptr;
  const std::lock_guard lock(error_mutex_);
  return error_;
}

void GroupState::rethrow_error() const {
  if (const std::exception_ptr found = error()) std::rethrow_exception(found);
}

void GroupState::fail(std::exception_ptr error) noexcept {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  has_failed_ = true;
}

void GroupState::fail(const comm::CallRecord& call, const TransportFailure& failure) {
  std::vector<std::int64_t> peers;
  if (call.peer >= 0) peers.push_back(call.peer);
  fail(error_of(identity_, call, options_.timeout, failure, peers));
}

void GroupState::fail(const std::string& reason) noexcept {
  fail(std::make_exception_ptr(
      base::Error(ErrorKind::comm, fmt::format("group '{}': {}", identity_.name, reason))));
}

void GroupState::add(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) abort_together({&communicator, 1});
  communicators_.push_back(std::move(communicator));
}

void GroupState::watch(const c10::Stream& stream, std::shared_ptr<DeviceCall> call) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return ring_.fail(call->record().number);  // nothing else would remove it
  pending_[stream.id()].push_back(std::move(call));
}

bool GroupState::has_pending() const {
  if (num_being_posted_ > 0) return true;
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, calls] : pending_) {
    if (!calls.empty()) return true;
  }
  return false;
}

bool GroupState::poll() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    // A failed device does not answer queries.
    for (auto& [stream, calls] : pending_) {
      if (!has_failed_) check_calls(calls);
    }
    if (!has_failed_) check_communicators();
  } catch (const std::exception& caught) {
    const std::string text = caught.what();
    const auto rank = identity_.world_ranks[static_cast<std::size_t>(identity_.rank)];
    fail(std::make_exception_ptr(base::Error(
        ErrorKind::device, fmt::format("rank {} on {}, group '{}': {}", rank, device().str(),
                                       identity_.name, text.substr(0, text.find('\n'))))));
  }
  return has_failed_ && !has_ended_;
}

std::vector<std::shared_ptr<Communicator>> GroupState::end() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_ended_, true)) return {};
  for (const auto& [stream, calls] : pending_) {
    for (const auto& call : calls) ring_.fail(call->record().number);
  }
  pending_.clear();
  begun_.clear();
  host_->abort(error_text(error()));
  return communicators_;
}

void GroupState::close() noexcept {
  if (has_failed_) abort_together(end());
  const std::lock_guard lock(mutex_);
  communicators_.clear();
}

void GroupState::record_completions() {
  // Destroying a call's events switches to their device and back, and switching back creates a
  // context on the thread's current device, which in a host thread is GPU 0.
  const c10::DeviceGuard on(device_);
  const std::lock_guard lock(mutex_);
  for (auto& [stream, calls] : pending_) record_completions(calls);
}

void GroupState::record_completions(Calls& calls) {
  while (!calls.empty() && calls.front()->has_ended()) {
    ring_.finish(calls.front()->record().number, calls.front()->record().bytes_sent);
    begun_.erase(calls.front().get());
    calls.pop_front();
  }
}

void GroupState::check_calls(Calls& calls) {
  record_completions(calls);
  if (calls.empty() || !calls.front()->has_begun()) return;
  const DeviceCall& first = *calls.front();
  const auto now = base::Clock::now();
  const auto [begun, is_new] = begun_.emplace(&first, now);
  if (is_new) ring_.start(first.record().number);
  if (now - begun->second > options_.timeout) {
    fail(first.record(), TransportFailure(TransportFailure::Cause::no_answer, {}));
  }
}

void GroupState::check_communicators() {
  for (const auto& communicator : communicators_) {
    const std::string found = communicator->poll();
    if (!found.empty()) fail(found + "; see the output of the other ranks for the cause");
  }
}

}  // namespace dtrain::cuda
