// Reads dtrun's environment and machine; writes the environment of each rank.
#pragma once

#include <string>
#include <vector>

namespace launcher {

/// NVIDIA GPUs the driver shows; 0 where there is none.
[[nodiscard]] int count_gpus();

/// The file that `name` stands for: itself with a slash in it, else the first executable of PATH,
/// else the one beside dtrun.
///
/// Throws: Error{spawn} naming the program.
[[nodiscard]] std::string find_program(const std::string& name);

/// The variables that a rank gets beyond those that dtrun itself was started with.
struct RankEnvironment {
  int rank = 0;
  int num_ranks = 1;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  std::string error_file;
  int threads = 0;  // of its CPUs, where it is bound; 0: it is not
  int control_fd = -1;
  int store_fd = -1;         // an end of the door
  int terminal_columns = 0;  // 0: the rank's standard error is not shown on a terminal
};

/// NAME=VALUE strings: dtrun's own variables with those of the rank put over them.
[[nodiscard]] std::vector<std::string> environment_of(const RankEnvironment& rank);

}  // namespace launcher
