// dtrain plan: prints the ranked layouts as a table, and the command line of the best.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/text/text.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/internal/layout_choice.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/data/split.h"
#include "dtrain/metrics/format.h"

namespace dtrain::commands {
namespace {

using metrics::format_bytes;
using planner::RankedLayout;

std::string row(std::size_t number, const RankedLayout& choice) {
  const planner::Prediction& predicted = choice.prediction;
  const double seconds = predicted.seconds();
  return fmt::format("{:>3} {:>6} {:>10} {:>10} {:>7} {:>9} {:>6} {:>10}  {}\n", number,
                     choice.layout.ranks, format_bytes(predicted.memory),
                     format_bytes(static_cast<std::int64_t>(predicted.bytes_sent)),
                     fmt::format("{:.3f}", predicted.bubble), metrics::format_step_time(seconds),
                     fmt::format("{:.0f}%", 100 * predicted.communication / seconds),
                     metrics::format_count(static_cast<std::int64_t>(choice.tokens_per_second())),
                     choice.layout.text());
}

// True if the plan is for this machine; false for machines whose rate was given.
bool is_for_this_machine(const config::PlanConfig& plan) { return plan.device_tflops == 0; }

bool is_layout(const config::Setting& setting) {
  return setting.key.starts_with("layout.") || setting.key.starts_with("plan.") ||
         setting.key == "batch.microbatch" || setting.key == "batch.grad_accum" ||
         setting.key == "batch.global" || setting.key == "machine.threads";
}

// The user's settings apart from the layout, as flags. --epochs replaces --steps.
std::string other_flags(const config::Config& asked) {
  std::string text;
  for (const config::Setting& setting : config::settings()) {
    const bool follows = setting.key == "train.steps" && asked.train.epochs > 0;
    if (!setting.is_used(config::Command::train, asked) || is_layout(setting) || follows ||
        config::is_default(setting, asked)) {
      continue;
    }
    text += fmt::format(" {}", setting.flag);
    if (setting.is_switch()) continue;
    const std::string value = config::value_text(setting, asked);
    text += fmt::format("{}{}", value.starts_with("--") ? '=' : ' ', base::shell_word(value));
  }
  return asked.data.train.empty() ? " --data FILE" + text : text;
}

std::string command_line(const config::Config& asked, const RankedLayout& best,
                         const planner::Cluster& site) {
  std::string text;
  const std::int64_t nodes = (best.layout.ranks + site.ranks_per_node - 1) / site.ranks_per_node;
  if (best.layout.ranks > 1) {
    text += nodes == 1 ? fmt::format("dtrun -n {} -- ", best.layout.ranks)
                       : fmt::format("dtrun --nnodes {} --node-rank R --master-addr HOST -n {} -- ",
                                     nodes, site.ranks_per_node);
  }
  text += fmt::format("dtrain{} {} --global-batch {}", other_flags(asked), best.layout.text(),
                      best.config.batch.global);
  // This machine's cores say nothing about another's.
  if (is_for_this_machine(asked.plan))
    text += fmt::format(" --threads {}", best.config.machine.threads);
  return text;
}

// The number of training samples; empty if files are missing here, as when planning for another
// machine.
std::optional<std::int64_t> num_samples_of(const config::Config& asked) {
  const data::SplitOptions options = data::split_options(asked);
  if (options.train.empty() || !data::missing_file(options).empty()) return std::nullopt;
  return data::open_split(options).train.size();
}

// The predicted duration of the run and, if the data is known, of one epoch.
std::string duration_line(const config::Config& asked, const RankedLayout& best,
                          std::optional<std::int64_t> num_samples) {
  const config::Config& config = best.config;
  const auto time_of = [&](double steps) {
    return base::readable_time(steps * best.prediction.seconds());
  };
  const bool counts_epochs = asked.train.epochs > 0;
  if (counts_epochs && !num_samples) return {};
  const std::int64_t steps =
      counts_epochs ? data::steps_of_epochs(config, *num_samples) : asked.train.steps;
  std::string of_pass;
  if (num_samples) {
    const double pass =
        static_cast<double>(*num_samples) / static_cast<double>(config.batch.global);
    of_pass = fmt::format("; a pass over the data takes {}", time_of(pass));
  }
  return fmt::format("time: {} of {} tokens take {}{}, evaluations and saves not counted\n",
                     metrics::format_count(steps) + (steps == 1 ? " step" : " steps"),
                     metrics::format_count(config.batch.global * config.data.seq_len),
                     time_of(static_cast<double>(steps)), of_pass);
}

// The machine of the ranks. Another machine has GPUs unless --device names something else.
planner::Cluster site_of(const config::Config& asked) {
  const config::PlanConfig& plan = asked.plan;
  const config::DeviceName& device = asked.machine.device;
  planner::Cluster site{.ranks_per_node = plan.ranks_per_node, .cores = base::usable_cores()};
  if (site.ranks_per_node == 0) site.ranks_per_node = std::max(plan.ranks, site.cores);
  if (is_for_this_machine(plan) && !device.is_cpu()) {
    base::fail(base::ErrorKind::usage,
               "plan measures only CPUs, and --device is {}: give --device-tflops, the rate of one "
               "rank on it",
               device);
  }
  if (!is_for_this_machine(plan) && (plan.ranks == 0 || plan.device_memory.count == 0)) {
    base::fail(base::ErrorKind::usage,
               "--device-tflops {:g} describes another machine: give its --ranks and "
               "--device-memory as well",
               plan.device_tflops);
  }
  if (!is_for_this_machine(plan)) site.device = device.kind == "auto" ? "cuda" : device.kind;
  return site;
}

std::string rates_line(const planner::Rates& rates, const planner::Cluster& site) {
  std::string text = rates.flops > 0 ? fmt::format("{:g} TFLOP/s per rank (given), on {}",
                                                   rates.flops / 1e12, site.device)
                                     : "passes and updates measured on this machine";
  if (rates.measured == nullptr) {
    text += "; communication within a node counted as free";
  } else {
    const planner::LinkRate& link = rates.measured->link();
    text += fmt::format("; all-reduces within it: {:.1f} us and {:.2f} GB/s measured",
                        1e6 * link.latency, link.bytes_per_second / 1e9);
  }
  if (rates.link_bytes_per_second > 0) {
    text += fmt::format("; {}/s per rank (given) between nodes of {} ranks",
                        format_bytes(static_cast<std::int64_t>(rates.link_bytes_per_second)),
                        site.ranks_per_node);
  }
  return text;
}

}  // namespace

void plan_layouts(const config::Config& asked, const Output& output) {
  const config::PlanConfig& plan = asked.plan;
  const planner::Cluster site = site_of(asked);
  const auto num_samples = num_samples_of(asked);
  planner::MachineRates measured;
  const planner::Rates rates{.flops = plan.device_tflops * 1e12,
                             .link_bytes_per_second = static_cast<double>(plan.link.count),
                             .measured = is_for_this_machine(plan) ? &measured : nullptr};
  planner::MemoryLimits memory;
  if (plan.device_memory.count > 0) {
    memory.rank = plan.device_memory.count;
  } else {
    memory.machine = planner::available_memory();
  }
  const planner::Ranking ranking = rank_with_progress("plan", asked, site, rates, memory);
  output(fmt::format("plan: {}\n", rates_line(rates, site)));
  output(fmt::format("{:>3} {:>6} {:>10} {:>10} {:>7} {:>9} {:>6} {:>10}  layout\n", "", "ranks",
                     "memory", "sent", "bubble", "step", "comm", "tokens/s"));
  const auto shown = std::min(ranking.choices.size(), static_cast<std::size_t>(plan.show));
  for (std::size_t i = 0; i < shown; ++i) output(row(i + 1, ranking.choices[i]));
  if (shown < ranking.choices.size()) {
    output(fmt::format("    and {} more, slower (--show N)\n", ranking.choices.size() - shown));
  }
  const auto named = std::min(ranking.rejected.size(), static_cast<std::size_t>(plan.show));
  for (std::size_t i = 0; i < named; ++i) {
    const planner::RejectedLayout& misfit = ranking.rejected[i];
    output(fmt::format("  - {} ranks, {}: {}\n", misfit.layout.ranks, misfit.layout.text(),
                       misfit.reason));
  }
  if (named < ranking.rejected.size()) {
    output(fmt::format("    and {} more that do not fit (--show N)\n",
                       ranking.rejected.size() - named));
  }
  output(duration_line(asked, ranking.choices.front(), num_samples));
  output(fmt::format("best: {}\n", command_line(asked, ranking.choices.front(), site)));
}

}  // namespace dtrain::commands
