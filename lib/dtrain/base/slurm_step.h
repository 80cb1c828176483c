// A step of SLURM: what `srun` tells its tasks.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace dtrain::base
