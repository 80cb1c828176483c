// Reads dtrun's environment and machine; writes the environment of each rank.
#pragma once

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

struct PreparedJob;

/// A rank that is about to be started.
struct RankStart {
  int index = 0;             // in the job
  int control_fd = -1;       // its end of the control descriptor
  int terminal_columns = 0;  // 0: the rank's standard error is not shown on a terminal
};

/// NAME=VALUE strings: dtrun's own variables with those of the rank put over them.
[[nodiscard]] std::vector<std::string> environment_of(const PreparedJob& job,
                                                      const RankStart& rank);

}  // namespace launcher
