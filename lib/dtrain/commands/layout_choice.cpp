#include "dtrain/commands/layout_choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/layout.h"
#include "dtrain/config/notices.h"
#include "dtrain/job/job.h"
#include "dtrain/metrics/console.h"
#include "dtrain/metrics/format.h"

namespace dtrain::commands {
namespace {

using planner::Layout;

// The ranks that are there, with what they are known to have.
struct Launched {
  std::int64_t ranks;
  planner::Site site;
};

Launched launched(const comm::World& world, const base::RankEnv& env) {
  const std::int64_t on_node = std::max<std::int64_t>(1, env.local_world_size);
  return {world.size(), {.ranks_per_node = on_node, .cores = base::usable_cores()}};
}

// The settings whose layout is open: machine and batch are those of this start.
config::Config open(const config::Config& config, const Launched& launched) {
  config::Config open = config;
  open.layout = {};
  open.plan.ranks = launched.ranks;
  return open;
}

// The layout of a run that went before as flags, without what has its default. A microbatch that
// followed from other settings then is kept as well: another one gives other bits.
Layout layout_of(const config::SavedRun& saved, const config::Config& open) {
  Layout layout{.ranks = saved.ranks, .flags = {}};
  for (const config::Setting& setting : config::settings()) {
    const bool is_of_layout = setting.key.starts_with("layout.") && setting.key != "layout.nnodes";
    if (!is_of_layout || config::is_default(setting, saved.asked)) continue;
    layout.flags.emplace_back(setting.flag, config::value_text(setting, saved.asked));
  }
  const std::int64_t microbatch = saved.resolved.batch.microbatch;
  if (open.batch.microbatch == 0 && microbatch > 0) {
    layout.flags.emplace_back("--microbatch", std::to_string(microbatch));
  }
  return layout;
}

// True where these settings leave it possible.
bool fits_site(const config::Config& open, const Layout& layout, const planner::Site& site) {
  try {
    (void)planner::with_layout(open, layout, site);
    return true;
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    return false;
  }
}

// Of the run that goes on here, if it has had as many ranks.
std::optional<Layout> kept_layout(const config::Config& config, const config::Config& open,
                                  const Launched& launched) {
  if (!config.checkpoint.resume.is_automatic() || config.run.dir.empty()) return std::nullopt;
  const std::string path = config.run.dir + "/config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const config::SavedRun saved = config::read_saved_run(path);
  const config::LayoutConfig& layout = saved.asked.layout;
  const bool is_usable = saved.ranks == launched.ranks &&
                         layout.strategy != config::Strategy::automatic &&
                         !config::strategy_of(layout).is_local();
  if (!is_usable) return std::nullopt;
  Layout kept = layout_of(saved, open);
  return fits_site(open, kept, launched.site) ? std::optional(kept) : std::nullopt;
}

// By a group of its own, whose buffers go with it.
planner::LinkRate measured_link(comm::World& world) {
  const auto group = world.split(comm::ranks_below(world.size()), "layout choice");
  return planner::measure_link(*group);
}

planner::Ranking rank_here(const config::Config& open, const planner::Site& site,
                           const planner::LinkRate& link) {
  planner::MachineRates measured(link);
  const std::int64_t limit = open.machine.memory_limit.count;
  return rank_with_progress("--strategy auto", open, site, {.measured = &measured},
                            [&](std::int64_t ranks) {
                              const std::int64_t available = planner::memory_of_rank(ranks);
                              return limit > 0 ? std::min(limit, available) : available;
                            });
}

std::string words_on(const planner::Ranking& ranking, double seconds) {
  const planner::Choice& best = ranking.choices.front();
  std::string text =
      fmt::format("--strategy auto has chosen {}: {} a step and {} a rank predicted",
                  best.layout.text(), metrics::format_step_time(best.prediction.seconds()),
                  metrics::format_bytes(best.prediction.memory));
  if (ranking.choices.size() > 1) {
    const planner::Choice& next = ranking.choices[1];
    text +=
        fmt::format("; {} of {} layouts is next, with {}", next.layout.text(),
                    ranking.choices.size(), metrics::format_step_time(next.prediction.seconds()));
  }
  return fmt::format("{}; chosen in {}", text, base::readable_time(seconds));
}

// A flag and its value a line.
std::string to_text(const Layout& layout) {
  std::string text;
  for (const auto& [flag, value] : layout.flags) text += fmt::format("{}\n{}\n", flag, value);
  return text;
}

Layout from_text(const std::string& text, std::int64_t ranks) {
  Layout layout{.ranks = ranks, .flags = {}};
  std::istringstream lines(text);
  std::string flag;
  std::string value;
  while (std::getline(lines, flag) && std::getline(lines, value)) {
    layout.flags.emplace_back(flag, value);
  }
  return layout;
}

}  // namespace

SettledStart settle_layout(const config::Config& config, const config::StartRecord& record,
                           comm::World& world, const base::RankEnv& env) {
  SettledStart settled{.config = config, .record = record};
  const std::string strategy(text_of(config.layout.strategy));
  comm::check_agreement(world.control(), {{"layout.strategy", strategy}});
  if (config.layout.strategy != config::Strategy::automatic) return settled;
  const Launched here = launched(world, env);
  const config::Config open_config = open(config, here);
  comm::ProcessGroup& ranks = world.control();
  const planner::LinkRate link = world.size() == 1 ? planner::LinkRate{} : measured_link(world);
  Layout taken;
  comm::run_long_on_leader(ranks, "choosing a layout", [&] {
    if (const auto kept = kept_layout(config, open_config, here)) {
      taken = *kept;
      settled.choice = fmt::format("--strategy auto goes on with the layout of {}", config.run.dir);
      return;
    }
    const auto begin = base::Clock::now();
    const planner::Ranking ranking = rank_here(open_config, here.site, link);
    taken = ranking.choices.front().layout;
    settled.choice = words_on(ranking, base::seconds_since(begin));
    settled.step_seconds = ranking.choices.front().prediction.seconds();
  });
  const Layout layout = from_text(comm::exchange_texts(ranks, to_text(taken)).front(), here.ranks);
  settled.config = planner::with_layout(open_config, layout, here.site);
  settled.config.layout.nnodes = config.layout.nnodes;
  settled.config.plan = config.plan;
  config::Config asked = planner::given_layout(record.asked.value_or(config), layout);
  asked.batch.global = settled.config.batch.global;
  settled.record.asked = asked;
  if (ranks.rank() == 0) {
    for (const std::string& line : config::warnings(config::Command::train, settled.config)) {
      base::log_warning("{}", line);
    }
  }
  return settled;
}

planner::Ranking rank_with_progress(const std::string& name, const config::Config& asked,
                                    const planner::Site& site, const planner::Rates& rates,
                                    const std::function<std::int64_t(std::int64_t)>& memory) {
  metrics::Console console({.live = ::isatty(STDERR_FILENO) == 1});
  const planner::Ranking ranking =
      planner::rank_layouts(asked, site, rates, memory, [&](const std::string& layout) {
        console.show_progress(fmt::format("{}: {}", name, layout));
      });
  console.show_progress("");
  if (ranking.choices.empty()) {
    const planner::Misfit& first = ranking.misfits.front();
    base::fail(base::ErrorKind::usage, "{}: no layout fits: {}: {}", name, first.layout.text(),
               first.reason);
  }
  return ranking;
}

}  // namespace dtrain::commands
