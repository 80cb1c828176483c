// Work that is cut into tasks for the threads of a rank.
#pragma once

#include <cstdint>
#include <functional>

namespace dtrain::kernels {

/// The threads that run_tasks uses: LibTorch's.
[[nodiscard]] std::int64_t num_workers();

/// Calls task(index, worker) once for each index below `count`, by whichever thread is free; tasks
/// that run at the same time have different workers, below num_workers(). Returns when all are
/// done.
///
/// Throws: what a task throws first; tasks that have not begun are left out then.
void run_tasks(std::int64_t count,
               const std::function<void(std::int64_t task, std::int64_t worker)>& task);

}  // namespace dtrain::kernels
