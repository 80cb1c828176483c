#include "dtrain/kernels/tasks.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>

#include "dtrain/kernels/product.h"

namespace dtrain::kernels {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// Processor time of the calling thread.
nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

// How many threads of a rank work. Where another process takes a core, the thread on it holds up
// all others at the end of the work, for as long as the kernel lets that process run: more than the
// thread is good for. So it is left out for a while, and tried again after a longer one each time.
// Results do not depend on the number.
class Crew {
 public:
  [[nodiscard]] std::int64_t size(std::int64_t most) {
    if (missing_ > 0 && Clock::now() >= again_) missing_ = 0;
    return std::max<std::int64_t>(1, most - missing_);
  }

  // lost: the longest that a thread had no processor for; of: all of the work.
  void report(nanoseconds lost, nanoseconds of) {
    constexpr nanoseconds kNoticed = std::chrono::microseconds(200);
    const bool is_disturbed = lost > kNoticed && lost * 4 > of;
    if (!is_disturbed) {
      if (++calm_ > kCalm) pause_ = kShortest;
      return;
    }
    calm_ = 0;
    ++missing_;
    again_ = Clock::now() + pause_;
    pause_ = std::min<nanoseconds>(2 * pause_, kLongest);
  }

 private:
  static constexpr nanoseconds kShortest = std::chrono::milliseconds(20);
  static constexpr nanoseconds kLongest = std::chrono::milliseconds(640);
  static constexpr std::int64_t kCalm = 1000;  // works without a disturbance

  std::int64_t missing_ = 0;
  std::int64_t calm_ = 0;
  Clock::time_point again_{};
  nanoseconds pause_ = kShortest;
};

void raise_to(std::atomic<std::int64_t>& most, std::int64_t value) {
  std::int64_t before = most;
  while (before < value && !most.compare_exchange_weak(before, value)) {
  }
}

}  // namespace

std::int64_t num_workers() { return at::get_num_threads(); }

void run_tasks(std::int64_t count,
               const std::function<void(std::int64_t task, std::int64_t worker)>& task) {
  thread_local Crew crew;  // of the rank that this thread is
  const std::int64_t most = std::min(count, num_workers());
  const auto workers = static_cast<int>(std::min(count, crew.size(num_workers())));
  std::atomic<std::int64_t> next = 0;
  std::atomic<std::int64_t> lost = 0;  // ns
  std::atomic_flag has_failed;
  std::exception_ptr failure;
  const auto work = [&](std::int64_t worker) {
    try {
      for (std::int64_t index = next++; index < count; index = next++) task(index, worker);
    } catch (...) {
      if (!has_failed.test_and_set()) failure = std::current_exception();
      next = count;
    }
    release_tiles();
  };
  if (most <= 1 || workers <= 1) {
    work(0);
  } else {
    const auto begin = Clock::now();
#pragma omp parallel num_threads(workers)
    {
      const nanoseconds used = processor_time();
      work(omp_get_thread_num());
      const nanoseconds passed = Clock::now() - begin;
      raise_to(lost, (passed - (processor_time() - used)).count());
    }
    crew.report(nanoseconds(lost), Clock::now() - begin);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dtrain::kernels
