// Reads dtrun's environment and machine; writes the environment of each rank.
#pragma once

#include <string>
#include <vector>

namespace launcher {

/// Number of NVIDIA GPUs that the driver shows and CUDA_VISIBLE_DEVICES allows.
[[nodiscard]] int count_gpus();

/// Resolves a program's name: a path if it has a slash, otherwise the first executable in PATH,
/// otherwise an executable in dtrun's folder.
///
/// Throws: Error{spawn} naming the program.
[[nodiscard]] std::string find_program(const std::string& name);

/// The value of a variable of dtrun's own environment; empty: it is not set.
[[nodiscard]] std::string environment_value(const std::string& name);

/// The job's secret, from DTRAIN_JOB_TOKEN or DTRAIN_JOB_TOKEN_FILE; empty: none.
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

/// NAME=VALUE strings: dtrun's own variables, overridden by those of the rank.
[[nodiscard]] std::vector<std::string> environment_of(const PreparedJob& job,
                                                      const RankStart& rank);

}  // namespace launcher
