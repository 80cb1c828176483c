// dtrain plan: the ranking as a table, and the command line of its first row.
#include "dtrain/planner/planner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/commands/commands.h"
#include "dtrain/config/assign.h"
#include "dtrain/metrics/console.h"
#include "dtrain/metrics/format.h"

namespace dtrain::commands {
namespace {

using metrics::format_bytes;
using planner::Choice;

std::string row(std::size_t number, const Choice& choice) {
  const planner::Prediction& found = choice.prediction;
  const double seconds = found.seconds();
  return fmt::format("{:>3} {:>6} {:>10} {:>10} {:>7} {:>9} {:>6} {:>10}  {}\n", number,
                     choice.layout.ranks, format_bytes(found.memory),
                     format_bytes(static_cast<std::int64_t>(found.bytes_sent)),
                     fmt::format("{:.3f}", found.bubble), metrics::format_step_time(seconds),
                     fmt::format("{:.0f}%", 100 * found.communication / seconds),
                     metrics::format_count(static_cast<std::int64_t>(choice.tokens_per_second())),
                     choice.layout.text());
}

bool is_layout(const config::Setting& setting) {
  return setting.key.starts_with("layout.") || setting.key.starts_with("plan.") ||
         setting.key == "batch.microbatch" || setting.key == "batch.grad_accum" ||
         setting.key == "batch.global" || setting.key == "machine.threads";
}

// What was asked for beside the layout, as flags.
std::string other_flags(const config::Config& asked) {
  std::string text;
  for (const config::Setting& setting : config::settings()) {
    if (!setting.is_used(config::Command::train, asked) || is_layout(setting) ||
        config::is_default(setting, asked)) {
      continue;
    }
    text += fmt::format(" {}", setting.flag);
    if (!setting.is_switch()) text += fmt::format(" {}", config::value_text(setting, asked));
  }
  return asked.data.train.empty() ? " --data FILE" + text : text;
}

std::string command_line(const config::Config& asked, const Choice& best,
                         const planner::Site& site) {
  std::string text;
  const std::int64_t nodes = (best.layout.ranks + site.ranks_per_node - 1) / site.ranks_per_node;
  if (best.layout.ranks > 1) {
    text += nodes == 1 ? fmt::format("dtrun -n {} -- ", best.layout.ranks)
                       : fmt::format("dtrun --nnodes {} --node-rank R --master-addr HOST -n {} -- ",
                                     nodes, site.ranks_per_node);
  }
  return fmt::format("{}dtrain{} {} --global-batch {} --threads {}", text, other_flags(asked),
                     best.layout.text(), best.config.batch.global, best.config.machine.threads);
}

std::string rates_line(const planner::Rates& rates, const planner::Site& site) {
  std::string text = rates.flops > 0
                         ? fmt::format("{:g} TFLOP/s a rank as given", rates.flops / 1e12)
                         : "passes and updates measured on this machine";
  if (rates.measured == nullptr) {
    text += "; communication within a node counted as free";
  } else {
    const planner::LinkRate& link = rates.measured->link();
    text += fmt::format("; all-reduces within it: {:.1f} us and {:.2f} GB/s measured",
                        1e6 * link.latency, link.bytes_per_second / 1e9);
  }
  if (rates.link_bytes_per_second > 0) {
    text += fmt::format("; {}/s a rank between nodes of {} ranks as given",
                        format_bytes(static_cast<std::int64_t>(rates.link_bytes_per_second)),
                        site.ranks_per_node);
  }
  return text;
}

}  // namespace

void plan_layouts(const config::Config& asked, const Output& output) {
  const config::PlanConfig& plan = asked.plan;
  const std::int64_t cores = base::usable_cores();
  const std::int64_t most_ranks = std::max(plan.ranks, cores);
  const planner::Site site{
      .ranks_per_node = plan.ranks_per_node == 0 ? most_ranks : plan.ranks_per_node,
      .cores = cores};
  planner::MachineRates measured;
  const bool is_here = plan.device_tflops == 0;
  const planner::Rates rates{.flops = plan.device_tflops * 1e12,
                             .link_bytes_per_second = static_cast<double>(plan.link.count),
                             .measured = is_here ? &measured : nullptr};
  metrics::Console console({.live = ::isatty(STDERR_FILENO) == 1});
  const planner::Ranking ranking = planner::rank_layouts(
      asked, site, rates,
      [&](std::int64_t ranks) {
        const std::int64_t given = plan.device_memory.count;
        return given > 0 ? given : planner::memory_of_rank(ranks);
      },
      [&](const std::string& layout) { console.show_progress("plan: " + layout); });
  console.show_progress("");
  if (ranking.choices.empty()) {
    base::fail(base::ErrorKind::usage, "plan: no layout fits: {}: {}",
               ranking.misfits.front().layout.text(), ranking.misfits.front().reason);
  }
  output(fmt::format("plan: {}\n", rates_line(rates, site)));
  output(fmt::format("{:>3} {:>6} {:>10} {:>10} {:>7} {:>9} {:>6} {:>10}  layout\n", "", "ranks",
                     "memory", "sent", "bubble", "step", "comm", "tokens/s"));
  const auto shown = std::min(ranking.choices.size(), static_cast<std::size_t>(plan.show));
  for (std::size_t i = 0; i < shown; ++i) output(row(i + 1, ranking.choices[i]));
  if (shown < ranking.choices.size()) {
    output(fmt::format("    and {} more, slower (--show)\n", ranking.choices.size() - shown));
  }
  for (const planner::Misfit& misfit : ranking.misfits) {
    output(fmt::format("  - {} ranks, {}: {}\n", misfit.layout.ranks, misfit.layout.text(),
                       misfit.reason));
  }
  output(fmt::format("best: {}\n", command_line(asked, ranking.choices.front(), site)));
}

}  // namespace dtrain::commands
