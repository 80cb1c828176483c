// A step of SLURM: what `srun` tells its tasks, and the lists of host names that it writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// The step that a process belongs to, as SLURM's variables describe it (read_slurm_step).
struct SlurmStep {
  std::int64_t job_id = 0;
  std::int64_t step_id = 0;
  std::int64_t num_tasks = 1;
  std::int64_t num_nodes = 1;
  std::int64_t node = 0;   ///< this task's, from 0
  std::string hosts = {};  ///< the nodes' names, as a list that is not expanded; empty: not told
  std::int64_t gpus = 0;   ///< of the step on this node; 0: not told
  std::int64_t cores = 0;  ///< of this task, or of the step on this node; 0: not told
  std::string master_addr = {};  ///< MASTER_ADDR, by which a user says where to meet; or empty
  std::int64_t master_port = 0;  ///< MASTER_PORT, likewise; or 0
};

/// The name of node 0.
///
/// Throws: Error{usage} naming SLURM_STEP_NODELIST, if it is missing or makes no sense.
[[nodiscard]] std::string first_host_of(const SlurmStep& step);

/// The port at which the processes of a step meet: MASTER_PORT, else an even one from 20000 to
/// 29998; the next one belongs to the step as well. The first 5,000 steps of a job have different
/// ports, and so have the first 61 steps of a job and those of the next one.
[[nodiscard]] std::int64_t port_of(const SlurmStep& step);

/// The hosts of a list such as "a[01-03,7],b5" or "rack[1-2]n[1-4]-ib", in its order; a number has
/// at least as many digits as the lower end of its range.
///
/// Returns: nothing for a list that makes no sense, is empty, or has more than 65,536 hosts or a
///          name of more than 255 characters.
[[nodiscard]] std::optional<std::vector<std::string>> expand_host_list(std::string_view list);

}  // namespace dtrain::base
