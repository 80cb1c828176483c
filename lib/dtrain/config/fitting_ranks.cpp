#include "dtrain/config/fitting_ranks.h"

#include <algorithm>
#include <vector>

namespace dtrain::config {
namespace {

constexpr std::int64_t kMostRanks = 64;

bool fits(const CommandLine& command_line, const Loaded& given, const RunSettings& run,
          Launch launch, std::int64_t num_ranks) {
  launch.world_size = launch.local_world_size = num_ranks;
  try {
    const ContinuedRun continued = continue_run(command_line, given, run, launch);
    (void)resolve(command_line.command, continued.loaded.config, launch);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

// "1, 2, 4 or 8"
std::string list(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool is_last = i + 1 == numbers.size();
    text += fmt::format("{}{}", i == 0 ? "" : is_last ? " or " : ", ", numbers[i]);
  }
  return text;
}

}  // namespace

std::string describe_unfit_ranks(const CommandLine& command_line, const Loaded& given,
                                 const RunSettings& run, const Launch& launch,
                                 const base::Error& error) {
  std::vector<std::int64_t> fitting;
  for (std::int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    if (fits(command_line, given, run, launch, ranks)) fitting.push_back(ranks);
  }
  if (fitting.empty()) return error.what();
  // Its advice is to change settings that a run keeps.
  std::string reason = error.what();
  reason.erase(std::min(reason.rfind(": "), reason.size()));
  const CheckpointConfig& checkpoint = given.config.checkpoint;
  const std::string start = checkpoint.resume.is_automatic()
                                ? fmt::format("--run-dir {} --resume auto", given.config.run.dir)
                                : fmt::format("--resume {}", checkpoint.resume);
  return fmt::format("{} cannot resume with {} rank{}: launch {}; of the run's settings, {}", start,
                     launch.world_size, launch.world_size == 1 ? "" : "s", list(fitting), reason);
}

}  // namespace dtrain::config
