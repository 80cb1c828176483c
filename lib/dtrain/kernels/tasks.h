// Work that is cut into tasks for the threads of a rank.
#pragma once

#include <cstdint>
#include <functional>

namespace dtrain::kernels {

/// The threads that run_tasks uses: as many as LibTorch's. Within a task 1.
[[nodiscard]] std::int64_t num_workers();

/// Calls task(index, worker) once for each index below `count`, by whichever thread is free; tasks
/// that run at the same time have different workers, below num_workers(). Returns when all are
/// done.
///
/// A task may run in a thread that knows nothing of the caller's state in LibTorch, as in
/// at::parallel_for: it works on memory, and only allocates tensors. Tasks within a task run in its
/// thread.
///
/// Throws:  what a task throws first; tasks that have not begun are left out then.
/// Threads: any number of callers, each of which keeps num_workers() - 1 helpers of its own until
///          it ends.
void run_tasks(std::int64_t count,
               const std::function<void(std::int64_t task, std::int64_t worker)>& task);

}  // namespace dtrain::kernels
