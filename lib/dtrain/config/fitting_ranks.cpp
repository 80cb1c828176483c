#include "dtrain/config/fitting_ranks.h"

#include <algorithm>
#include <vector>

#include "dtrain/config/continued_run.h"

namespace dtrain::config {
namespace {

constexpr std::int64_t kMostRanks = 64;

bool fits(const CommandLine& command_line, const Loaded& given, Launch launch,
          std::int64_t num_ranks) {
  launch.world_size = launch.local_world_size = num_ranks;
  try {
    const auto run = continue_run(command_line, given, launch);
    if (run) (void)resolve(command_line.command, run->loaded.config, launch);
    return run.has_value();
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
                                 const Launch& launch, const base::Error& error) {
  std::vector<std::int64_t> fitting;
  for (std::int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    if (fits(command_line, given, launch, ranks)) fitting.push_back(ranks);
  }
  if (fitting.empty()) return error.what();
  // Its advice is to change settings that a run keeps.
  std::string reason = error.what();
  reason.erase(std::min(reason.rfind(": "), reason.size()));
  return fmt::format(
      "--run-dir {} --resume auto cannot go on with {} rank{}: launch {}; of the run's settings, "
      "{}",
      given.config.run.dir, launch.world_size, launch.world_size == 1 ? "" : "s", list(fitting),
      reason);
}

}  // namespace dtrain::config
