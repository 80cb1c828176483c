#include "cuda/communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace dtrain::cuda {
namespace {

using Cause = NcclFailure::Cause;

// How long to sleep between two looks at a call of NCCL that goes on.
constexpr std::chrono::microseconds kPause{50};

// How long the destructor waits for peers.
constexpr std::chrono::seconds kFarewell{5};

ncclConfig_t config() {
  ncclConfig_t chosen = NCCL_CONFIG_INITIALIZER;
  chosen.blocking = 0;
  return chosen;
}

}  // namespace

void Communicator::join(const ncclUniqueId& id, CommunicatorRank place,
                        const comm::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (is_aborted_) throw NcclFailure(Cause::aborted, "the communicator was aborted");
  ncclConfig_t chosen = config();
  settle(ncclCommInitRankConfig(&handle_, place.size, id, place.rank, &chosen), deadline, lock);
}

void Communicator::require_handle() const {
  if (handle_ == nullptr) throw NcclFailure(Cause::aborted, "the communicator was aborted");
}

std::shared_ptr<Communicator> Communicator::split(int color, int key,
                                                  const comm::Deadline& deadline) {
  auto made = std::make_shared<Communicator>();
  ncclComm_t handle = nullptr;
  {
    std::unique_lock lock(mutex_);
    require_handle();
    ncclConfig_t chosen = config();
    settle(ncclCommSplit(handle_, color, key, &handle, &chosen), deadline, lock);
  }
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  std::unique_lock lock(made->mutex_);
  made->handle_ = handle;
  made->settle(ncclInProgress, deadline, lock);
  return made;
}

Communicator::~Communicator() {
  std::unique_lock lock(mutex_);
  if (handle_ == nullptr) return;
  for (const auto& [base, registration] : registrations_) ncclCommDeregister(handle_, registration);
  try {
    settle(ncclCommFinalize(handle_), comm::Deadline(kFarewell), lock);
    if (handle_ != nullptr) ncclCommDestroy(handle_);
  } catch (const NcclFailure&) {
    if (handle_ != nullptr) ncclCommAbort(handle_);
  }
}

void Communicator::enqueue(const std::function<ncclResult_t(ncclComm_t)>& calls,
                           const comm::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  require_handle();
  ncclResult_t result = ncclGroupStart();
  if (result == ncclSuccess) {
    const ncclResult_t called = calls(handle_);
    result = ncclGroupEnd();
    if (called != ncclSuccess && called != ncclInProgress) result = called;
  }
  settle(result, deadline, lock);
}

void Communicator::settle(ncclResult_t result, const comm::Deadline& deadline,
                          std::unique_lock<std::mutex>& lock) {
  while (result == ncclInProgress) {
    require_handle();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
    result = asked == ncclSuccess ? state : asked;
    if (result != ncclInProgress) break;
    if (deadline.passed()) throw NcclFailure(Cause::no_answer, "NCCL still connects the ranks");
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
  if (result != ncclSuccess) throw NcclFailure(Cause::failed, text_of(result));
}

std::string Communicator::text_of(ncclResult_t result) const {
  const char* detail = ncclGetLastError(handle_);
  return fmt::format("NCCL: {}{}{}", ncclGetErrorString(result),
                     detail != nullptr && *detail != '\0' ? ": " : "",
                     detail != nullptr ? detail : "");
}

void Communicator::remember(void* base, std::size_t bytes, const comm::Deadline& deadline) {
  std::unique_lock lock(mutex_);
  require_handle();
  void* registration = nullptr;
  settle(ncclCommRegister(handle_, base, bytes, &registration), deadline, lock);
  registrations_[base] = registration;
}

void Communicator::forget(void* base) noexcept {
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
  return state == ncclSuccess || state == ncclInProgress ? std::string() : text_of(state);
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  if (handle_ == nullptr) return;
  ncclCommAbort(handle_);
  handle_ = nullptr;
}

}  // namespace dtrain::cuda
