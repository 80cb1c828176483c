#include "first_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "dtrain/config/command_line.h"
#include "dtrain/data/split.h"

namespace dtrain::app {
namespace {

// A twentieth of a text of so many bytes is enough to measure a loss on.
constexpr std::uintmax_t kLeastToHoldOut = 100'000;

// True for what says nothing of the training: a run that goes on is given the same command.
bool says_nothing(std::string_view key) {
  return key == "data.train" || key == "checkpoint.resume" || key == "checkpoint.strict_resume" ||
         key.starts_with("run.") || key.starts_with("machine.");
}

bool is_alone(const config::CommandLine& command_line) {
  const auto names_data = [](const auto& given) { return given.setting->key == "data.train"; };
  const auto is_open = [](const auto& given) { return says_nothing(given.setting->key); };
  return !command_line.help && !command_line.print_config && command_line.config_file.empty() &&
         command_line.deepspeed_file.empty() &&
         std::ranges::any_of(command_line.assignments, names_data) &&
         std::ranges::all_of(command_line.assignments, is_open);
}

}  // namespace

FirstRun first_run(const Arguments& arguments) {
  const auto command_line = config::parse_command_line(config::Command::train, arguments);
  if (!is_alone(command_line)) return {};
  const config::Config config = config::load(command_line).config;
  const std::string& data = config.data.train;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(data, error);
  FirstRun run;
  if (!error && bytes >= kLeastToHoldOut) {
    run.flags = {"--val-fraction", "0.05", "--eval-every", "100"};
  }
  run.flags.insert(run.flags.end(), {"--checkpoint-every", "100"});
  // Samples take memory of their own, which a limit may not leave.
  if (data::has_tokenizer(data) && config.machine.memory_limit.count == 0) {
    run.flags.insert(run.flags.end(), {"--sample-every", "200"});
  }
  run.notice = fmt::format(
      "only --data is given, so these flags are added: {}; none is added once you give a setting "
      "of the training yourself",
      fmt::join(run.flags, " "));
  return run;
}

}  // namespace dtrain::app
