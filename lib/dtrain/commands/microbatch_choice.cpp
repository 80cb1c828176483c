#include "dtrain/commands/microbatch_choice.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/base/number.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/leader.h"
#include "dtrain/comm/long_task.h"
#include "dtrain/config/layout.h"
#include "dtrain/config/open_microbatch.h"
#include "dtrain/config/resumed_run.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::commands {
namespace {

// The microbatch of the run that this start resumes, as its config.json tells; 0: there is none, or
// its global batch is another.
std::int64_t saved_microbatch(const config::Config& config) {
  const std::string path = config::resumed_config_file(config);
  if (path.empty()) return 0;
  const config::BatchConfig saved = config::read_saved_run(path).resolved.batch;
  return saved.global == config.batch.global ? saved.microbatch : 0;
}

// Collective.
std::int64_t kept_microbatch(const config::Config& config, comm::ProcessGroup& world) {
  const std::string text = comm::leader_text(world, "reading config.json of the run", [&] {
    return std::to_string(saved_microbatch(config));
  });
  const std::int64_t saved = base::number_in<std::int64_t>(text).value_or(0);
  const auto possible = config::open_microbatches(config, saved);
  return !possible.empty() && possible.front() == saved ? saved : 0;
}

// Nothing where --memory-limit cannot be met. On a device rank_plan leaves that to the device.
std::optional<parallel::MemoryPlan> predicted_memory(const config::Config& config,
                                                     std::int64_t rank) {
  const mesh::DeviceMesh mesh(config::mesh_of(config.layout));
  try {
    const parallel::MemoryPlan memory = parallel::rank_plan(config, mesh.coordinate(rank)).memory;
    const std::int64_t limit = config.machine.memory_limit.count;
    return limit > 0 && memory.peak() > limit ? std::nullopt : std::optional(memory);
  } catch (const parallel::LimitExceeded&) {
    return std::nullopt;
  }
}

// Collective.
bool fits(const config::Config& config, comm::World& world) {
  comm::ProcessGroup& ranks = world.control();
  std::optional<parallel::MemoryPlan> predicted;
  comm::run_long(ranks, "predicting the memory of a microbatch",
                 [&] { predicted = predicted_memory(config, world.rank()); });
  const auto answers = comm::exchange_texts(ranks, predicted ? "" : "no");
  const bool meets_limit =
      std::ranges::all_of(answers, [](const std::string& answer) { return answer.empty(); });
  return meets_limit && job::fits_machine_memory(config, ranks, *predicted);
}

// Collective.
config::Config with_fitting_microbatch(const config::Config& config, comm::World& world) {
  config::Config fitting = config;
  for (const std::int64_t size : config::open_microbatches(config, config.batch.microbatch)) {
    config::set_microbatch(fitting, size);
    if (size == 1 || fits(fitting, world)) break;
  }
  return fitting;
}

}  // namespace

void settle_microbatch(SettledStart& start, comm::World& world) {
  config::Config& config = start.config;
  const config::BatchConfig asked = start.record.asked.value_or(config).batch;
  if (!config::is_microbatch_open(asked)) return;
  if (const std::int64_t kept = kept_microbatch(config, world.control()); kept != 0) {
    config::set_microbatch(config, kept);
    return;
  }
  const std::int64_t largest = config.batch.microbatch;
  config = with_fitting_microbatch(config, world);
  if (config.batch.microbatch == largest || world.rank() != 0) return;
  base::log_info("microbatch {} in place of {}, which is predicted to need too much memory",
                 config.batch.microbatch, largest);
}

}  // namespace dtrain::commands
