#include "dtrain/commands/microbatch_choice.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/base/number.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/batch.h"
#include "dtrain/config/json.h"
#include "dtrain/config/layout.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::commands {
namespace {

namespace store = checkpoint::store;

// The batch of the run that this start resumes, or of the launch's attempt before it; 0: there is
// none.
config::BatchConfig saved_batch(const config::Config& config, Attempt attempt) {
  const std::string path = attempt == Attempt::later ? config.run.dir + "/config.json"
                                                     : config::resumed_config_file(config);
  if (!path.empty()) return config::read_saved_run(path).resolved.batch;
  const config::Resume& resume = config.checkpoint.resume;  // a checkpoint that lies elsewhere
  const std::string manifest = resume.path + "/" + std::string(store::kManifestName);
  if (resume.kind != config::Resume::Kind::path || !base::is_there(manifest)) return {};
  return config::from_json(store::read_manifest(resume.path).config).batch;
}

// Collective. 0: there is none that the global batch and the ranks allow.
std::int64_t kept_microbatch(const config::Config& config, Attempt attempt,
                             comm::ProcessGroup& world) {
  const std::string text = comm::leader_text(world, "reading the run's settings", [&] {
    const config::BatchConfig batch = saved_batch(config, attempt);
    return std::to_string(batch.global == config.batch.global ? batch.microbatch : 0);
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
bool fits_ranks(const config::Config& config, comm::World& world) {
  comm::ProcessGroup& ranks = world.control();
  std::optional<parallel::MemoryPlan> predicted;
  comm::run_long(ranks, "predicting the memory of a microbatch",
                 [&] { predicted = predicted_memory(config, world.rank()); });
  const auto answers = comm::exchange_texts(ranks, predicted ? "" : "no");
  const bool meets_limit =
      std::ranges::all_of(answers, [](const std::string& answer) { return answer.empty(); });
  return meets_limit && job::fits_device_memory(config, world, *predicted) &&
         job::fits_machine_memory(config, ranks, *predicted);
}

// Collective.
config::Config with_fitting_microbatch(const config::Config& config, comm::World& world) {
  config::Config fitting = config;
  for (const std::int64_t size : config::open_microbatches(config, config.batch.microbatch)) {
    config::set_microbatch(fitting, size);
    if (size == 1 || fits_ranks(fitting, world)) break;
  }
  return fitting;
}

}  // namespace

void settle_microbatch(SettledStart& start, Attempt attempt, comm::World& world) {
  config::Config& config = start.config;
  const config::BatchConfig asked = start.record.asked.value_or(config).batch;
  if (!config::is_microbatch_open(asked)) return;
  if (const std::int64_t kept = kept_microbatch(config, attempt, world.control()); kept != 0) {
    config::set_microbatch(config, kept);
    return;
  }
  const std::int64_t largest = config.batch.microbatch;
  config = with_fitting_microbatch(config, world);
  if (config.batch.microbatch == largest || world.rank() != 0 || start.record.is_quiet) {
    return;
  }
  base::log_info("microbatch {} in place of {}, which is predicted to need too much memory",
                 config.batch.microbatch, largest);
}

}  // namespace dtrain::commands
