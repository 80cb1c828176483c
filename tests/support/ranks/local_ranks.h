// Runs several ranks inside a test, as threads or as processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/local/local_world.h"

namespace dtrain::testing {

/// The group of all ranks of a world.
[[nodiscard]] std::shared_ptr<comm::ProcessGroup> group_of_all(comm::World& world);

/// Runs `body` on `size` ranks that are threads of this process; the first exception is rethrown.
void on_threads(std::int64_t size, const std::function<void(comm::World&)>& body,
                const comm::GroupOptions& options = {.timeout = std::chrono::seconds(20)});

/// The code of a rank that is a process; the test receives the returned text.
using RankBody = std::function<std::string(comm::World&, const std::string& argument)>;

/// Registers `body` under a name; use at namespace scope of a test file. Rank processes execute the
/// test program again, because forking after using LibTorch's threads is unsafe.
struct RankProgram {
  RankProgram(const std::string& name, RankBody body);
};

struct RankOutcome {
  int status = 0;         ///< exit status; 128 + n if ended by signal n
  std::string text = {};  ///< text that the body returned, or the error as "KIND MESSAGE"
  std::string standard_error = {};
  double seconds = 0;  ///< from the start of the process to its end

  /// Returns standard_error without warnings about stragglers, which a busy machine causes.
  [[nodiscard]] std::string errors() const;
};

struct ProcessOptions {
  std::int64_t size = 2;
  std::string argument = {};
  std::string backend = "gloo";
  comm::GroupOptions group{.timeout = std::chrono::seconds(20)};
  std::vector<std::int64_t> world_sizes = {};  ///< world size passed to each rank; empty: `size`
  std::vector<std::int64_t> absent = {};       ///< ranks that are never started
  std::chrono::milliseconds limit = std::chrono::seconds(60);  ///< after which all are killed
};

/// Outcomes of all ranks after one was killed, and the time until all had ended.
struct AfterKill {
  std::vector<RankOutcome> outcomes;  // by rank
  double seconds = 0;
};

/// Processes that run one RankProgram, each as a rank of one world.
class RankProcesses {
 public:
  RankProcesses(const std::string& program, const ProcessOptions& options);
  /// Kills the processes that are still running.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void signal(std::int64_t rank, int number);
  /// Blocks until the rank writes a line with print_progress and returns it.
  std::string next_line(std::int64_t rank);
  /// Waits for all ranks and returns their outcomes by rank; absent ranks have a default outcome.
  std::vector<RankOutcome> wait();
  /// Waits for a line from each rank, kills `rank` 30 ms later, while it runs collectives, and
  /// waits for all ranks.
  AfterKill kill_at_work(std::int64_t rank);

 private:
  struct Process;
  std::vector<std::unique_ptr<Process>> processes_;  // by rank
  std::chrono::milliseconds limit_;
};

/// Starts the processes and waits for them.
std::vector<RankOutcome> on_processes(const std::string& program, const ProcessOptions& options);

/// Sends the test a line from inside a rank's body, for RankProcesses::next_line.
void print_progress(const std::string& line);

}  // namespace dtrain::testing
