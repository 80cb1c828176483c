#include "dtrain/kernels/tasks.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace dtrain::kernels {

std::int64_t num_workers() { return at::get_num_threads(); }

void run_tasks(std::int64_t count,
               const std::function<void(std::int64_t task, std::int64_t worker)>& task) {
  std::atomic<std::int64_t> next = 0;
  std::atomic_flag has_failed;
  std::exception_ptr failure;
  const auto work = [&](std::int64_t worker) {
    try {
      for (std::int64_t index = next++; index < count; index = next++) task(index, worker);
    } catch (...) {
      if (!has_failed.test_and_set()) failure = std::current_exception();
      next = count;
    }
  };
  const auto workers = static_cast<int>(std::min(count, num_workers()));
  if (workers <= 1) {
    work(0);
  } else {
#pragma omp parallel num_threads(workers)
    work(omp_get_thread_num());
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dtrain::kernels
