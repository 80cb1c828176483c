#include "dtrain/commands/internal/layout_choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/resolve/notices.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/job/job.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/metrics/console.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/plan/fitting.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::commands {
namespace {

namespace store = checkpoint::store;
using planner::Layout;

// The connected ranks and their machine.
struct Launched {
  std::int64_t ranks;
  planner::Cluster site;
};

Launched launched(const comm::World& world, const base::RankEnv& env) {
  const std::int64_t on_node = std::max<std::int64_t>(1, env.local_world_size);
  return {world.size(), {.ranks_per_node = on_node, .cores = base::usable_cores()}};
}

// The settings without a layout.
config::Config without_layout(const config::Config& config, const Launched& launched) {
  config::Config open = config;
  open.layout = {};
  open.plan.ranks = launched.ranks;
  return open;
}

// The saved run's layout as flags, without defaults. Includes an automatic microbatch: another one
// would change bits.
Layout layout_of(const config::SavedRun& saved, const config::Config& open) {
  Layout layout{.ranks = saved.ranks, .flags = {}};
  for (const config::Setting& setting : config::settings()) {
    const bool is_of_layout = setting.key.starts_with("layout.") && setting.key != "layout.nnodes";
    if (!is_of_layout || config::is_default(setting, saved.requested)) continue;
    layout.flags.emplace_back(setting.flag, config::value_text(setting, saved.requested));
  }
  const std::int64_t microbatch = saved.resolved.batch.microbatch;
  if (open.batch.microbatch == 0 && microbatch > 0) {
    layout.flags.emplace_back("--microbatch", std::to_string(microbatch));
  }
  return layout;
}

// True if these settings allow the layout.
bool fits_site(const config::Config& open, const Layout& layout, const planner::Cluster& site) {
  try {
    (void)planner::resolve_with_layout(open, layout, site);
    return true;
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    return false;
  }
}

// The layout of the run that resumes here, if it had the same number of ranks.
std::optional<Layout> kept_layout(const config::Config& config, const config::Config& open,
                                  const Launched& launched) {
  if (!config.checkpoint.resume.is_automatic() || config.run.dir.empty()) return std::nullopt;
  const std::string path = config.run.dir + "/config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const config::SavedRun saved = config::read_saved_run(path);
  const config::LayoutConfig& layout = saved.requested.layout;
  const bool is_usable = saved.ranks == launched.ranks &&
                         layout.strategy != config::Strategy::automatic &&
                         !config::strategy_of(layout).is_local();
  if (!is_usable) return std::nullopt;
  Layout kept = layout_of(saved, open);
  return fits_site(open, kept, launched.site) ? std::optional(kept) : std::nullopt;
}

// Measures all-reduces in a temporary group, whose buffers are freed with it.
planner::LinkRate measured_link(comm::World& world) {
  const auto group = world.split(comm::ranks_below(world.size()), "layout choice");
  return planner::measure_link(*group);
}

planner::Ranking rank_here(const config::Config& open, const planner::Cluster& site,
                           const planner::LinkRate& link) {
  planner::MachineRates measured(link);
  planner::MemoryLimits memory{.machine = planner::available_memory()};
  const std::int64_t limit = open.machine.memory_limit.count;
  if (limit > 0) memory.rank = limit;
  return rank_with_progress("--strategy auto", open, site, {.measured = &measured}, memory);
}

std::string describe_choice(const planner::Ranking& ranking, double seconds) {
  const planner::RankedLayout& best = ranking.choices.front();
  std::string text =
      fmt::format("--strategy auto chose {}: predicted {} per step and {} per rank",
                  best.layout.text(), metrics::format_step_time(best.prediction.seconds()),
                  metrics::format_bytes(best.prediction.memory));
  if (ranking.choices.size() > 1) {
    const planner::RankedLayout& next = ranking.choices[1];
    text +=
        fmt::format("; next best: {} (of {} layouts), {} per step", next.layout.text(),
                    ranking.choices.size(), metrics::format_step_time(next.prediction.seconds()));
  }
  return fmt::format("{}; chosen in {}", text, base::readable_time(seconds));
}

// The inverse of Layout::text().
Layout layout_from(const std::string& text, std::int64_t ranks) {
  Layout layout{.ranks = ranks, .flags = {}};
  std::istringstream words(text);
  for (std::string flag, value; words >> flag >> value;) layout.flags.emplace_back(flag, value);
  return layout;
}

// The batch settings of the run that is resumed or restarted; zeros if there is none.
config::BatchConfig saved_batch(const config::Config& config, Attempt attempt) {
  const std::string path = attempt == Attempt::later ? config.run.dir + "/config.json"
                                                     : config::resumed_config_file(config);
  if (!path.empty()) return config::read_saved_run(path).resolved.batch;
  const config::Resume& resume = config.checkpoint.resume;  // a checkpoint that lies elsewhere
  const std::string manifest = resume.path + "/" + std::string(store::kManifestName);
  if (resume.kind != config::Resume::Kind::path || !base::path_exists(manifest)) return {};
  return config::from_json(store::read_manifest(resume.path).config).batch;
}

// Collective. The saved microbatch; 0 if there is none or the global batch or the ranks rule it out.
std::int64_t kept_microbatch(const config::Config& config, Attempt attempt,
                             comm::ProcessGroup& world) {
  const std::string text = comm::leader_text(world, "reading the run's settings", [&] {
    const config::BatchConfig batch = saved_batch(config, attempt);
    return std::to_string(batch.global == config.batch.global ? batch.microbatch : 0);
  });
  const std::int64_t saved = base::number_in<std::int64_t>(text).value_or(0);
  const auto possible = config::microbatch_candidates(config, saved);
  return !possible.empty() && possible.front() == saved ? saved : 0;
}

// Empty if the prediction exceeds --memory-limit. On a device, rank_plan does not check the limit.
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
  for (const std::int64_t size : config::microbatch_candidates(config, config.batch.microbatch)) {
    config::set_microbatch(fitting, size);
    if (size == 1 || fits_ranks(fitting, world)) break;
  }
  return fitting;
}

}  // namespace

ChosenLayout choose_layout(const config::Config& config, const config::StartRecord& record,
                           comm::World& world, const base::RankEnv& env) {
  ChosenLayout chosen{.config = config, .record = record};
  const std::string strategy(text_of(config.layout.strategy));
  comm::check_agreement(world.control(), {{"layout.strategy", strategy}});
  if (config.layout.strategy != config::Strategy::automatic) return chosen;
  const Launched here = launched(world, env);
  const config::Config open_config = without_layout(config, here);
  comm::ProcessGroup& ranks = world.control();
  const planner::LinkRate link = world.size() == 1 ? planner::LinkRate{} : measured_link(world);
  Layout taken;
  comm::run_long_on_leader(ranks, "choosing a layout", [&] {
    if (const auto kept = kept_layout(config, open_config, here)) {
      taken = *kept;
      chosen.choice = fmt::format("--strategy auto keeps the layout of {}", config.run.dir);
      return;
    }
    const auto begin = base::Clock::now();
    const planner::Ranking ranking = rank_here(open_config, here.site, link);
    taken = ranking.choices.front().layout;
    chosen.choice = describe_choice(ranking, base::seconds_since(begin));
    chosen.step_seconds = ranking.choices.front().prediction.seconds();
  });
  const Layout layout = layout_from(comm::exchange_texts(ranks, taken.text()).front(), here.ranks);
  chosen.config = planner::resolve_with_layout(open_config, layout, here.site);
  chosen.config.layout.nnodes = config.layout.nnodes;
  chosen.config.plan = config.plan;
  config::Config asked = planner::apply_layout(record.requested.value_or(config), layout);
  asked.batch.global = chosen.config.batch.global;
  chosen.record.requested = asked;
  if (ranks.rank() == 0) {
    for (const std::string& line : config::warnings(config::Command::train, chosen.config)) {
      base::log_warning("{}", line);
    }
  }
  return chosen;
}

planner::Ranking rank_with_progress(const std::string& name, const config::Config& asked,
                                    const planner::Cluster& site, const planner::Rates& rates,
                                    const planner::MemoryLimits& memory) {
  metrics::Console console({.live = ::isatty(STDERR_FILENO) == 1});
  const planner::Ranking ranking =
      planner::rank_layouts(asked, site, rates, memory, [&](const std::string& layout) {
        console.show_progress(fmt::format("{}: {}", name, layout));
      });
  console.show_progress("");
  if (ranking.choices.empty()) {
    const planner::RejectedLayout& nearest = ranking.closest_rejected();
    const std::string advice =
        nearest.config ? "; use " + parallel::fitting_settings(*nearest.config, nearest.available)
                       : "";
    base::fail(base::ErrorKind::usage, "{}: no layout fits: {}: {}{}", name, nearest.layout.text(),
               nearest.reason, advice);
  }
  return ranking;
}

void choose_microbatch(ChosenLayout& start, Attempt attempt, comm::World& world) {
  config::Config& config = start.config;
  const config::BatchConfig asked = start.record.requested.value_or(config).batch;
  if (!config::is_microbatch_automatic(asked)) return;
  if (const std::int64_t kept = kept_microbatch(config, attempt, world.control()); kept != 0) {
    config::set_microbatch(config, kept);
    return;
  }
  const std::int64_t largest = config.batch.microbatch;
  config = with_fitting_microbatch(config, world);
  if (config.batch.microbatch == largest || world.rank() != 0 || start.record.is_quiet) {
    return;
  }
  base::log_info("using microbatch {} instead of {}, which is predicted to need too much memory",
                 config.batch.microbatch, largest);
}

}  // namespace dtrain::commands
