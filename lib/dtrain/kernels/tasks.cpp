#include "dtrain/kernels/tasks.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "dtrain/base/host/available_resources.h"
#include "dtrain/base/host/cpu_list.h"
#include "dtrain/kernels/gemm.h"
#include "dtrain/kernels/internal/thread_pool.h"

namespace dtrain::kernels {
namespace {

// Sets OpenMP's thread count to 1 while the calling thread runs tasks, as in a parallel region.
class SingleThreadScope {
 public:
  SingleThreadScope() : before_(at::get_num_threads()) { ::omp_set_num_threads(1); }
  ~SingleThreadScope() { ::omp_set_num_threads(before_); }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  const int before_;
};

// The CPU affinity of each OpenMP thread of this rank, which OMP_PROC_BIND and OMP_PLACES decide.
std::vector<base::CpuList> cpus_of_threads(std::int64_t threads) {
  std::vector<base::CpuList> cpus(static_cast<std::size_t>(threads));
#pragma omp parallel num_threads(static_cast <int>(threads))
  cpus[static_cast<std::size_t>(::omp_get_thread_num())] = base::affinity_mask();
  return cpus;
}

// True if each of the threads can have a core of its own.
bool have_cores(std::int64_t threads, const std::vector<base::CpuList>& cpus) {
  std::set<int> all;
  for (const base::CpuList& list : cpus) all.insert(list.begin(), list.end());
  return threads <= std::min(std::ssize(all), base::cpu_quota().value_or(threads));
}

std::unique_ptr<ThreadPool> make_thread_pool(std::int64_t threads) {
  // Longer than the gaps between the parallel regions of a step, and far shorter than a scheduler
  // time slice, for which a spinning thread and another process would block each other.
  constexpr std::chrono::microseconds kSpin{50};
  const std::vector<base::CpuList> cpus = cpus_of_threads(threads);
  return std::make_unique<ThreadPool>(
      ThreadPool::Options{.workers = threads,
                          .spin = have_cores(threads, cpus) ? kSpin : std::chrono::microseconds{},
                          .begin = [cpus](std::int64_t worker) {
                            base::bind_thread(cpus[static_cast<std::size_t>(worker)]);
                          }});
}

// The thread pool of the calling thread's rank.
ThreadPool& rank_thread_pool(std::int64_t threads) {
  thread_local std::unique_ptr<ThreadPool> pool;
  if (!pool || pool->workers() != threads) {
    pool.reset();
    pool = make_thread_pool(threads);
  }
  return *pool;
}

}  // namespace

std::int64_t num_workers() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

void run_tasks(std::int64_t count,
               const std::function<void(std::int64_t task, std::int64_t worker)>& task) {
  std::atomic<std::int64_t> next = 0;
  std::atomic_flag has_failed;
  std::exception_ptr failure;
  const auto work = [&](std::int64_t worker) {
    const SingleThreadScope single_thread;
    try {
      for (std::int64_t index = next++; index < count; index = next++) task(index, worker);
    } catch (...) {
      if (!has_failed.test_and_set()) failure = std::current_exception();
      next = count;
    }
    release_tiles();
  };
  const std::int64_t threads = num_workers();
  if (threads <= 1 || count <= 1) {
    work(0);
  } else {
    rank_thread_pool(threads).run(count - 1, std::ref(work));
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dtrain::kernels
