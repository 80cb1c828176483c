// SLURM job steps: the variables that `srun` sets for its tasks, and SLURM's host lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// The SLURM step of a process, read from SLURM's variables by read_slurm_step.
struct SlurmStep {
  std::int64_t job_id = 0;
  std::int64_t step_id = 0;
  std::int64_t num_tasks = 1;
  std::int64_t num_nodes = 1;
  std::int64_t node = 0;         ///< this task's node, from 0
  std::string hosts = {};        ///< the nodes' names as a compressed host list; empty: unknown
  std::int64_t gpus = 0;         ///< GPUs of the step on this node; 0: unknown
  std::int64_t cores = 0;        ///< cores of this task, or of the step on this node; 0: unknown
  std::string master_addr = {};  ///< MASTER_ADDR, the user's rendezvous address; or empty
  std::int64_t master_port = 0;  ///< MASTER_PORT, the user's rendezvous port; or 0
};

/// The name of node 0.
///
/// Throws: Error{usage} naming SLURM_STEP_NODELIST, if it is missing or malformed.
[[nodiscard]] std::string first_host_of(const SlurmStep& step);

/// The rendezvous port of a step: MASTER_PORT if set, otherwise an even port from 20000 to 29998.
/// The step also uses the next port. The first 5,000 steps of a job have different ports, and so do
/// the first 61 steps of consecutive jobs.
[[nodiscard]] std::int64_t port_of(const SlurmStep& step);

/// Expands a host list such as "a[01-03,7],b5" or "rack[1-2]n[1-4]-ib", in order; numbers are
/// padded to the width of their range's lower end.
///
/// Returns: empty for a list that is malformed, empty, or has more than 65,536 hosts or a name of
///          more than 255 characters.
[[nodiscard]] std::optional<std::vector<std::string>> expand_host_list(std::string_view list);

}  // namespace dtrain::base
