// Runs tasks in parallel on the threads of a rank.
#pragma once

#include <cstdint>
#include <functional>

namespace dtrain::kernels {

/// Returns the number of threads that run_tasks uses: LibTorch's number, or 1 within a task.
[[nodiscard]] std::int64_t num_workers();

/// Calls task(index, worker) once for each index below `count`, on whichever thread is free, and
/// returns when all tasks are done. Tasks that run concurrently have different values of `worker`,
/// below num_workers().
///
/// As with at::parallel_for, a task may run in a thread without the caller's thread-local LibTorch
/// state: it may allocate tensors, but should otherwise use raw memory. Nested tasks run in the
/// thread of the outer task.
///
/// Throws:  the first exception of a task; tasks that have not started are skipped.
/// Threads: any number of callers; each keeps its own pool of num_workers() - 1 threads until the
///          calling thread ends.
void run_tasks(std::int64_t count,
               const std::function<void(std::int64_t task, std::int64_t worker)>& task);

}  // namespace dtrain::kernels
