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

// How often to look at a call of NCCL that goes on before sleeping: most take as long as a thread
// takes to start.
constexpr int kLooks = 1000;

// How long to sleep between two looks afterwards.
constexpr std::chrono::microseconds kSettlePause{50};

// How long the destructor waits for peers.
constexpr std::chrono::seconds kFarewell{5};

// NCCL gives a message up to 32 blocks, each on a multiprocessor of its own.
constexpr int kMessageBlocks = 4;

// Blocking communicators start no thread for each call, but ncclCommAbort would free one of them
// while another thread is still inside its call: it joins only the threads of the others.
ncclConfig_t config(CommunicatorUse use) {
  ncclConfig_t chosen = NCCL_CONFIG_INITIALIZER;
  chosen.blocking = 0;
  if (use == CommunicatorUse::messages) chosen.maxCTAs = kMessageBlocks;
  return chosen;
}

// One line.
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
    if (ncclComm_t handle = each->give_up()) handles.push_back(handle);
  }
  if (handles.empty()) return;
  ncclGroupStart();
  for (ncclComm_t handle : handles) ncclCommAbort(handle);
  ncclGroupEnd();
}

void Communicator::join(const ncclUniqueId& id, CommunicatorRank place,
                        const base::Deadline& deadline, CommunicatorUse use) {
  std::unique_lock lock(mutex_);
  if (is_given_up_) throw TransportFailure(Cause::closed, {}, "the communicator was aborted");
  ncclConfig_t chosen = config(use);
  const ncclResult_t result =
      ncclCommInitRankConfig(&written_, place.size, id, place.rank, &chosen);
  handle_ = take_written();
  settle(result, deadline, lock);
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
  settle(ncclCommSplit(handle_, color, key, &written_, &chosen), deadline, lock);
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  auto made = std::make_shared<Communicator>();
  made->handle_ = take_written();
  lock.unlock();
  std::unique_lock lock_of_made(made->mutex_);
  made->settle(ncclInProgress, deadline, lock_of_made);
  return made;
}

Communicator::~Communicator() {
  std::unique_lock lock(mutex_);
  if (handle_ == nullptr) return;
  for (const auto& [base, registration] : registrations_) ncclCommDeregister(handle_, registration);
  try {
    settle(ncclCommFinalize(handle_), base::Deadline(kFarewell), lock);
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
  settle(result, deadline, lock);
}

void Communicator::settle(ncclResult_t result, const base::Deadline& deadline,
                          std::unique_lock<std::mutex>& lock) {
  // ncclCommSplit returns success while it is under way: only the communicator's state tells.
  for (int looks = 0; result == ncclSuccess || result == ncclInProgress; ++looks) {
    require_handle();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
    result = asked == ncclSuccess ? state : asked;
    if (result != ncclInProgress) break;
    if (deadline.passed())
      throw TransportFailure(Cause::no_answer, {}, "NCCL still connects the ranks");
    lock.unlock();
    looks < kLooks ? std::this_thread::yield() : std::this_thread::sleep_for(kSettlePause);
    lock.lock();
  }
  if (result != ncclSuccess) throw TransportFailure(Cause::failed, {}, result_text(result));
}

void Communicator::remember(void* base, std::size_t bytes, const base::Deadline& deadline) {
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
  return state == ncclSuccess || state == ncclInProgress ? std::string() : result_text(state);
}

ncclComm_t Communicator::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  is_given_up_ = true;
  return std::exchange(handle_, nullptr);
}

}  // namespace dtrain::cuda
