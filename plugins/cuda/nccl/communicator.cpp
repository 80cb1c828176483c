#include "cuda/nccl/communicator.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace dtrain::cuda {
namespace {

using Cause = TransportFailure::Cause;

// How often to poll a pending NCCL call before sleeping; most take about as long as a thread start.
constexpr int kNcclSpinPolls = 1000;

// How long to sleep between later polls.
constexpr std::chrono::microseconds kNcclPollInterval{50};

// How long the destructor waits for ncclCommFinalize.
constexpr std::chrono::seconds kFinalizeTimeout{5};

// Blocks per message; NCCL's default is up to 32, each on its own multiprocessor.
constexpr int kMessageBlocks = 4;

// Non-blocking, although that starts a thread per call: ncclCommAbort would free a blocking
// communicator while another thread is still inside one of its calls.
ncclConfig_t config(CommunicatorUse use) {
  ncclConfig_t chosen = NCCL_CONFIG_INITIALIZER;
  chosen.blocking = 0;
  if (use == CommunicatorUse::messages) chosen.maxCTAs = kMessageBlocks;
  return chosen;
}

// Returns NCCL's error message as one line.
std::string result_text(ncclResult_t result) {
  const char* last = ncclGetLastError(nullptr);
  const std::string_view detail = last != nullptr ? last : "";
  return fmt::format("NCCL: {}{}{}", ncclGetErrorString(result), detail.empty() ? "" : ": ",
                     detail.substr(0, detail.find('\n')));
}

}  // namespace

void abort_together(std::span<const std::shared_ptr<Communicator>> communicators) noexcept {
  std::vector<ncclComm_t> handles;
  for (const auto& each : communicators) {
    if (ncclComm_t handle = each->detach()) handles.push_back(handle);
  }
  if (handles.empty()) return;
  ncclGroupStart();
  for (ncclComm_t handle : handles) ncclCommAbort(handle);
  ncclGroupEnd();
}

void Communicator::join(const ncclUniqueId& id, CommunicatorRank place,
                        const base::Deadline& deadline, CommunicatorUse use) {
  std::unique_lock lock(mutex_);
  if (is_detached_) throw TransportFailure(Cause::closed, {}, "the communicator was aborted");
  ncclConfig_t chosen = config(use);
  const ncclResult_t result =
      ncclCommInitRankConfig(&written_, place.size, id, place.rank, &chosen);
  handle_ = take_written();
  wait_until_done(result, deadline, lock);
}

ncclComm_t Communicator::take_written() { return std::atomic_ref(written_).exchange(nullptr); }

void Communicator::require_handle() const {
  if (handle_ == nullptr) throw TransportFailure(Cause::closed, {}, "the communicator was aborted");
}

std::shared_ptr<Communicator> Communicator::split(int color, int key,
                                                  const base::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  require_handle();
  ncclConfig_t chosen = config(CommunicatorUse::any);
  wait_until_done(ncclCommSplit(handle_, color, key, &written_, &chosen), deadline, lock);
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  auto made = std::make_shared<Communicator>();
  made->handle_ = take_written();
  lock.unlock();
  std::unique_lock lock_of_made(made->mutex_);
  made->wait_until_done(ncclInProgress, deadline, lock_of_made);
  return made;
}

Communicator::~Communicator() {
  std::unique_lock lock(mutex_);
  if (handle_ == nullptr) return;
  for (const auto& [base, registration] : registrations_) ncclCommDeregister(handle_, registration);
  try {
    wait_until_done(ncclCommFinalize(handle_), base::Deadline(kFinalizeTimeout), lock);
    if (handle_ != nullptr) ncclCommDestroy(handle_);
  } catch (const TransportFailure&) {
    if (handle_ != nullptr) ncclCommAbort(handle_);
  }
}

void Communicator::enqueue(const std::function<ncclResult_t(ncclComm_t)>& calls,
                           const base::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  require_handle();
  ncclResult_t result = ncclGroupStart();
  if (result == ncclSuccess) {
    const ncclResult_t called = calls(handle_);
    result = ncclGroupEnd();
    if (called != ncclSuccess && called != ncclInProgress) result = called;
  }
  wait_until_done(result, deadline, lock);
}

void Communicator::wait_until_done(ncclResult_t result, const base::Deadline& deadline,
                                   std::unique_lock<std::mutex>& lock) {
  // ncclCommSplit returns success while still in progress, so the communicator's state decides.
  for (int polls = 0; result == ncclSuccess || result == ncclInProgress; ++polls) {
    require_handle();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
    result = asked == ncclSuccess ? state : asked;
    if (result != ncclInProgress) break;
    if (deadline.passed())
      throw TransportFailure(Cause::no_answer, {}, "NCCL is still connecting the ranks");
    lock.unlock();
    polls < kNcclSpinPolls ? std::this_thread::yield()
                           : std::this_thread::sleep_for(kNcclPollInterval);
    lock.lock();
  }
  if (result != ncclSuccess) throw TransportFailure(Cause::failed, {}, result_text(result));
}

void Communicator::register_memory(void* base, std::size_t bytes, const base::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  require_handle();
  void* registration = nullptr;
  wait_until_done(ncclCommRegister(handle_, base, bytes, &registration), deadline, lock);
  registrations_[base] = registration;
}

void Communicator::deregister_memory(void* base) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = registrations_.find(base);
  if (found == registrations_.end()) return;
  if (handle_ != nullptr) ncclCommDeregister(handle_, found->second);
  registrations_.erase(found);
}

std::string Communicator::poll() noexcept {
  const std::lock_guard lock(mutex_);
  ncclResult_t state = ncclSuccess;
  if (handle_ == nullptr || ncclCommGetAsyncError(handle_, &state) != ncclSuccess) return {};
  return state == ncclSuccess || state == ncclInProgress ? std::string() : result_text(state);
}

ncclComm_t Communicator::detach() noexcept {
  const std::lock_guard lock(mutex_);
  is_detached_ = true;
  return std::exchange(handle_, nullptr);
}

}  // namespace dtrain::cuda
