#include "dtrain/config/open_layout.h"

#include <algorithm>
#include <functional>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/config/assign.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

void check_chosen(const Config& config,
                  const std::function<std::string(const Setting&)>& origin_of) {
  for (const Setting& setting : settings()) {
    if (!is_chosen_by_auto(setting) || is_default(setting, config)) continue;
    fail(ErrorKind::usage,
         "{} {} does not go with --strategy auto, which chooses it: leave it out, or name a "
         "strategy (dtrain plan compares them)",
         origin_of(setting), value_text(setting, config));
  }
}

}  // namespace

// --nnodes only checks the launch.
bool is_chosen_by_auto(const Setting& setting) {
  return (setting.key.starts_with("layout.") && setting.key != "layout.strategy" &&
          setting.key != "layout.nnodes") ||
         setting.key == "batch.grad_accum";
}

void check_open_layout(Command command, const Config& config) {
  if (command != Command::train) {
    fail(ErrorKind::usage,
         "--strategy auto chooses the layout of a training run: give dtrain {} "
         "another strategy",
         name_of(command));
  }
  check_chosen(config, [](const Setting& setting) { return std::string(setting.flag); });
}

void check_open_layout(const CommandLine& command_line, const Config& config) {
  const bool is_open = config.layout.strategy == Strategy::automatic;
  if (!is_open || command_line.command != Command::train) return;
  check_chosen(config, [&](const Setting& setting) {
    std::string origin(setting.flag);
    for (const Assignment& given : command_line.assignments) {
      if (given.setting == &setting) origin = given.origin;
    }
    return origin;
  });
}

void check_open_device(const DeviceName& device) {
  if (device.is_cpu()) return;
  fail(ErrorKind::usage,
       "--strategy auto measures CPUs alone, and --device is {}: name a strategy (dtrain plan "
       "--device-tflops compares them)",
       device);
}

void resolve_open_batch(BatchConfig& batch, std::int64_t num_ranks) {
  if (batch.global != 0) return;
  const std::int64_t at_once = num_ranks * std::max<std::int64_t>(1, batch.microbatch) *
                               std::max<std::int64_t>(1, batch.grad_accum);
  batch.global = (kDefaultGlobalBatch + at_once - 1) / at_once * at_once;
}

}  // namespace dtrain::config
