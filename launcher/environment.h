// Reads dtrun's environment and machine; writes the environment of each rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace launcher {

/// NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves of those the driver shows; 0 where there is none.
[[nodiscard]] int count_gpus();

/// The file that `name` stands for: itself with a slash in it, else the first executable of PATH,
/// else the one beside dtrun.
///
/// Throws: Error{spawn} naming the program.
[[nodiscard]] std::string find_program(const std::string& name);

/// The value of a variable of dtrun's own environment; empty: it is not set.
[[nodiscard]] std::string environment_value(const std::string& name);

/// The job's secret, which DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE gives; empty: none.
///
/// Throws: Error{usage} as net::job_secret.
[[nodiscard]] std::string job_secret_of_environment();

/// The variables that a rank gets beyond those that dtrun itself was started with.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  int ranks_of_machine = 1;  // that share its cores
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  std::string error_file;
  int restart_count = 0;
  int max_restarts = 0;
  std::string committed;       // CommittedSteps of the attempts before; empty: none
  std::string restart_reason;  // how the attempt before failed; empty: there was none
  int threads = 0;             // of its CPUs, where it is bound; 0: it is not
  int control_fd = -1;
  int store_fd = -1;         // an end of the door; -1: the ranks meet over TCP
  int store_port = 0;        // at this port of master_addr
  int store_listener = -1;   // rank 0: the socket that listens there
  std::string rank_token;    // by which they then know each other
  int terminal_columns = 0;  // 0: the rank's standard error is not shown on a terminal
};

/// NAME=VALUE strings: dtrun's own variables with those of the rank put over them.
[[nodiscard]] std::vector<std::string> environment_of(const RankEnvironment& rank);

}  // namespace launcher
