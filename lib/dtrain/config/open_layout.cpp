#include "dtrain/config/open_layout.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/config/assign.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

// Part of what is chosen. --nnodes only says what must be there.
bool is_chosen(const Setting& setting) {
  return (setting.key.starts_with("layout.") && setting.key != "layout.strategy" &&
          setting.key != "layout.nnodes") ||
         setting.key == "batch.grad_accum";
}

}  // namespace

void check_open_layout(Command command, const Config& config) {
  if (command != Command::train) {
    fail(ErrorKind::usage,
         "--strategy auto chooses the layout of a training run: give dtrain {} "
         "another strategy",
         name_of(command));
  }
  for (const Setting& setting : settings()) {
    if (!is_chosen(setting) || is_default(setting, config)) continue;
    fail(ErrorKind::usage,
         "{} {} does not go with --strategy auto, which chooses it: leave it out, or name a "
         "strategy (dtrain plan compares them)",
         setting.flag, value_text(setting, config));
  }
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
  const std::int64_t at_once = num_ranks * std::max<std::int64_t>(1, batch.microbatch);
  batch.global = (kDefaultGlobalBatch + at_once - 1) / at_once * at_once;
}

}  // namespace dtrain::config
