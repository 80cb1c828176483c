#include "dtrain/kernels/internal/thread_pool.h"

#include <time.h>

#include <system_error>

#include "dtrain/base/host/threads.h"

namespace dtrain::kernels {
namespace {

using base::Clock;

constexpr std::uint32_t kOpen = 1U << 31;  // flag in ThreadPool::joined_, above the count

// CPU time of the calling thread.
std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

ThreadPool::ThreadPool(const Options& options) : options_(options) {
  try {
    for (std::int64_t worker = 1; worker < options_.workers; ++worker) {
      Helper& helper = helpers_.emplace_back();
      helper.thread = std::thread([this, worker, &helper] { help(worker, helper); });
    }
  } catch (const std::system_error&) {
    helpers_.pop_back();
  }
}

ThreadPool::~ThreadPool() {
  for (Helper& helper : helpers_) {
    helper.call = Call::end;
    helper.call.notify_one();
  }
  for (Helper& helper : helpers_) helper.thread.join();
}

void ThreadPool::run(std::int64_t helpers, const Work& work) noexcept {
  work_ = &work;
  joined_.store(kOpen, std::memory_order_release);
  call(helpers);
  work(0);
  finish();
}

// A helper that has not reacted to the last wake-up will join when it gets a core; another one is
// woken in its place.
void ThreadPool::call(std::int64_t helpers) {
  for (Helper& helper : helpers_) {
    if (helpers == 0) return;
    if (!helper.backoff.has_expired()) continue;
    if (helper.call.exchange(Call::work, std::memory_order_acq_rel) != Call::none) continue;
    helper.call.notify_one();
    --helpers;
  }
}

void ThreadPool::finish() {
  std::uint32_t joined = joined_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while (joined != 0) {
    wait_while(joined_, joined);
    joined = joined_.load(std::memory_order_acquire);
  }
}

void ThreadPool::help(std::int64_t worker, Helper& self) {
  if (options_.begin) options_.begin(worker);
  while (true) {
    wait_while(self.call, Call::none);
    if (self.call.exchange(Call::none, std::memory_order_acq_rel) == Call::end) return;
    if (!self.backoff.has_expired() || !join()) continue;  // woken before its back-off began
    const auto begin = Clock::now();
    const auto used = processor_time();
    (*work_)(worker);
    const std::chrono::nanoseconds passed = Clock::now() - begin;
    const auto lost = passed - (processor_time() - used);
    self.backoff.report(lost, passed);
    // The last helper to leave closed work wakes the caller.
    if (joined_.fetch_sub(1, std::memory_order_acq_rel) == 1) joined_.notify_one();
  }
}

bool ThreadPool::join() {
  std::uint32_t joined = joined_.load(std::memory_order_relaxed);
  while ((joined & kOpen) != 0) {
    if (joined_.compare_exchange_weak(joined, joined + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

template <typename Word>
void ThreadPool::wait_while(const std::atomic<Word>& word, Word value) const {
  const auto begin = Clock::now();
  do {
    if (word.load(std::memory_order_acquire) != value) return;
    base::pause_briefly();
  } while (Clock::now() - begin < options_.spin);
  word.wait(value, std::memory_order_acquire);
}

}  // namespace dtrain::kernels
