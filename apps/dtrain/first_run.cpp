#include "first_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "dtrain/base/rank_env.h"
#include "dtrain/config/command_line.h"
#include "dtrain/data/split.h"

namespace dtrain::app {
namespace {

// A twentieth of a text of so many bytes is enough to measure a loss on.
constexpr std::uintmax_t kLeastToHoldOut = 100'000;

// True for what leaves the flags of a first run right: a run that goes on is given the same
// command, and its length, layout and best checkpoint say nothing against them.
bool leaves_flags(std::string_view key) {
  constexpr std::string_view kKeys[] = {"data.train",        "train.steps",
                                        "train.epochs",      "checkpoint.keep_best",
                                        "checkpoint.resume", "checkpoint.strict_resume"};
  constexpr std::string_view kGroups[] = {"run.", "machine.", "layout."};
  return std::ranges::find(kKeys, key) != std::end(kKeys) ||
         std::ranges::any_of(kGroups, [&](auto group) { return key.starts_with(group); });
}

bool is_first_run(const config::CommandLine& command_line) {
  const auto names_data = [](const auto& given) { return given.setting->key == "data.train"; };
  const auto is_open = [](const auto& given) { return leaves_flags(given.setting->key); };
  return !command_line.help && command_line.config_file.empty() &&
         command_line.deepspeed_file.empty() &&
         std::ranges::any_of(command_line.assignments, names_data) &&
         std::ranges::all_of(command_line.assignments, is_open);
}

bool says_layout(const config::CommandLine& command_line) {
  return std::ranges::any_of(command_line.assignments, [](const auto& given) {
    return given.setting->key.starts_with("layout.");
  });
}

}  // namespace

FirstRun first_run(const Arguments& arguments) {
  const auto command_line = config::parse_command_line(config::Command::train, arguments);
  if (!is_first_run(command_line)) return {};
  const config::Config config = config::load(command_line).config;
  // A fork has the settings of the run that it resumes.
  if (config.checkpoint.resume.kind == config::Resume::Kind::path) return {};
  const std::string& data = config.data.train;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(data, error);
  FirstRun run;
  if (base::rank_env_of_process().world_size > 1 && !says_layout(command_line)) {
    run.flags = {"--strategy", "ddp"};
  }
  if (!error && bytes >= kLeastToHoldOut) {
    run.flags.insert(run.flags.end(), {"--val-fraction", "0.05", "--eval-every", "100"});
  }
  run.flags.insert(run.flags.end(), {"--checkpoint-every", "100"});
  // Samples take memory of their own, which a limit may not leave.
  if (data::has_tokenizer(data) && config.machine.memory_limit.count == 0) {
    run.flags.insert(run.flags.end(), {"--sample-every", "200"});
  }
  run.notice = fmt::format(
      "little more than --data is given, so these flags are added: {}; none is added once you set "
      "more of the training than its length, its layout and --keep-best",
      fmt::join(run.flags, " "));
  return run;
}

}  // namespace dtrain::app
