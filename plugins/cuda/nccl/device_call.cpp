#include "cuda/nccl/device_call.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "cuda/nccl/group_state.h"

namespace dtrain::cuda {
namespace {

// How long to sleep between polls of a call that the host waits for.
constexpr std::chrono::microseconds kEndPause{20};

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

DeviceCall::DeviceCall(comm::CallRecord record, std::shared_ptr<GroupState> group)
    : record_(std::move(record)),
      group_(std::move(group)),
      ready_(group_->config().device.type()),
      end_(group_->config().device.type()) {
  ready_.record(current_stream(group_->config().device));
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
    group_->error().rethrow();
    std::this_thread::sleep_for(kEndPause);
  }
}

void DeviceCall::wait() {
  if (!is_posted_) {  // the connection to the peer is still being established
    const auto start = base::Clock::now();
    wait_until_posted();
    group_->ring().add_wait(base::Clock::now() - start);
  }
  if (!has_ended_) group_->error().rethrow();
  end_.block(current_stream(group_->config().device));
  release();
}

void DeviceCall::wait_host() {
  // A caller of this result also reads others, and a rank's calls are aborted together.
  group_->error().rethrow();
  if (has_ended()) return release();
  const auto start = base::Clock::now();
  wait_until_posted();
  while (!has_ended()) {
    // The watchdog aborts overdue calls.
    group_->error().rethrow();
    std::this_thread::sleep_for(kEndPause);
  }
  group_->ring().add_wait(base::Clock::now() - start);
  release();
}

bool DeviceCall::has_ended() const {
  if (has_ended_) return true;
  if (!is_posted_ || !end_.query()) return false;
  // An error is recorded before kernels are aborted, so without one this kernel completed normally.
  if (group_->error().is_set()) return false;
  has_ended_ = true;
  return true;
}

bool DeviceCall::is_completed() const { return has_ended() || group_->error().is_set(); }

void InFlightCalls::add(const c10::Stream& stream, std::shared_ptr<DeviceCall> call) {
  pending_[stream.id()].push_back(std::move(call));
}

bool InFlightCalls::is_empty() const {
  return std::ranges::all_of(pending_, [](const auto& each) { return each.second.empty(); });
}

void InFlightCalls::record_completions() {
  for (auto& [stream, calls] : pending_) record_completions(calls);
}

void InFlightCalls::check() {
  for (auto& [stream, calls] : pending_) {
    if (!error_.is_set()) check(calls);
  }
}

void InFlightCalls::fail_all() {
  for (const auto& [stream, calls] : pending_) {
    for (const auto& call : calls) ring_.fail(call->record().number);
  }
  pending_.clear();
  begun_.clear();
}

void InFlightCalls::record_completions(Calls& calls) {
  while (!calls.empty() && calls.front()->has_ended()) {
    ring_.finish(calls.front()->record().number, calls.front()->record().bytes_sent);
    begun_.erase(calls.front().get());
    calls.pop_front();
  }
}

void InFlightCalls::check(Calls& calls) {
  record_completions(calls);
  if (calls.empty() || !calls.front()->has_begun()) return;
  const DeviceCall& first = *calls.front();
  const auto now = base::Clock::now();
  const auto [begun, is_new] = begun_.emplace(&first, now);
  if (is_new) ring_.start(first.record().number);
  if (now - begun->second > timeout_) {
    error_.set(first.record(),
               comm::TransportFailure(comm::TransportFailure::Cause::no_answer, {}));
  }
}

}  // namespace dtrain::cuda
