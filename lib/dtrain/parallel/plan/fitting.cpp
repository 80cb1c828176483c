#include "dtrain/parallel/plan/fitting.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::parallel {
namespace {

using config::Config;
using config::DataAxisKind;
using metrics::format_bytes;
using Flags = std::vector<std::pair<std::string, std::string>>;
using RecomputeKind = config::RecomputeSetting::Kind;

constexpr std::int64_t kMostRanks = 1024;
// Strategies that shard the state and split the work by samples or within blocks.
constexpr const char* kSharded = "fsdp";
constexpr const char* kSplit = "tp";
// Planning time is proportional to the microbatches of a step.
constexpr std::int64_t kMostMicrobatches = 1 << 14;

Flags joined(Flags first, const Flags& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Settings that replace a job's.
struct Change {
  Flags flags;
  std::int64_t ranks = 1;
};

/// A change, and the memory of the largest rank with it.
struct Fit {
  Change change;
  std::int64_t bytes = 0;
};

// Candidates for the largest stage: the ends hold embedding and head, a middle one only layers.
std::int64_t bytes_of_largest_rank(const Config& config) {
  const std::int64_t stages = config.layout.pp;
  std::int64_t most = 0;
  for (const std::int64_t stage : {std::int64_t{0}, stages / 2, stages - 1}) {
    using mesh::Axis;
    const RankPlan plan = rank_plan(config, {{Axis::pp, stage}, {Axis::dp, 0}, {Axis::tp, 0}});
    most = std::max(most, plan.memory.peak());
  }
  return most;
}

class FitSearch {
 public:
  FitSearch(const Config& config, const AvailableMemory& available)
      : config_(config),
        available_(available),
        ranks_(config::mesh_of(config.layout).num_ranks()) {}

  [[nodiscard]] std::string text() const {
    const std::vector<std::string> texts = single_changes();
    if (texts.empty()) {
      auto fit = first_fit(all_together(ranks_, kSharded));
      if (!fit) fit = first_fit_on_more_ranks();
      return fit ? text_of(*fit) : text_of_least();
    }
    std::string text = texts.front();
    for (std::size_t i = 1; i < texts.size(); ++i) {
      text += fmt::format("{}{}", i + 1 == texts.size() ? " or " : ", ", texts[i]);
    }
    return text;
  }

 private:
  [[nodiscard]] Config changed(const Change& change) const {
    Config config = config_;
    config.machine.memory_limit = {};  // already known not to be met
    if (config.machine.recompute.kind == RecomputeKind::automatic) {
      config::assign_text(*config::find_key("machine.recompute"), "level", "--recompute", config);
    }
    config.batch.grad_accum = 0;
    config.layout.nnodes = 0;
    config.layout.accumulate = config::Accumulation::automatic;
    if (change.ranks != ranks_) {
      const config::LayoutConfig before = std::exchange(config.layout, {});
      config.layout.strategy = before.strategy;
      config.machine.backend = config::Backend::automatic;
      if (config::strategy_of(config.layout).is_local()) config.layout.local_ranks = change.ranks;
    }
    for (const auto& [flag, value] : change.flags) {
      if (flag == "--strategy") {
        config.layout.pp = config.layout.dp = config.layout.tp = config.layout.local_ranks = 0;
        config.machine.backend = config::Backend::automatic;
      }
      if (flag == "--strategy" || flag == "--data-axis") config.layout.shard_size = 0;
      config::assign_text(*config::find_flag(flag), value, flag, config);
    }
    const bool is_local = config::strategy_of(config.layout).is_local();
    config::Launch launch{.world_size = is_local ? 1 : change.ranks,
                          .local_world_size = is_local ? 1 : ranks_together(change.ranks)};
    if (!config.machine.device.is_cpu()) {
      launch.devices = {config.machine.device.kind};
      launch.num_gpus = launch.local_world_size;
    }
    return config::resolve(config::Command::train, config, launch);
  }

  // Empty if the settings are inconsistent.
  [[nodiscard]] std::optional<std::int64_t> bytes_with(const Change& change) const {
    try {
      const Config config = changed(change);
      if (config.batch.grad_accum > kMostMicrobatches) return std::nullopt;
      return bytes_of_largest_rank(config);
    } catch (const base::Error& error) {
      if (error.kind() != base::ErrorKind::usage) throw;
      return std::nullopt;
    }
  }

  [[nodiscard]] bool fits(const Change& change, std::int64_t bytes) const {
    if (available_.ranks == 0) return bytes <= available_.bytes;
    // Ranks beyond those of the machine may be on others.
    const std::int64_t here = change.ranks > ranks_ ? 1 : ranks_together(change.ranks);
    return bytes <= available_.bytes / here;
  }

  [[nodiscard]] std::optional<Fit> first_fit(const std::vector<Change>& changes) const {
    for (const Change& change : changes) {
      const auto bytes = bytes_with(change);
      if (bytes && fits(change, *bytes)) return Fit{change, *bytes};
    }
    return std::nullopt;
  }

  [[nodiscard]] std::vector<Change> shardings() const {
    const config::LayoutConfig& layout = config_.layout;
    if (layout.dp == 1) return {};
    const bool is_one_axis = config::strategy_of(layout).axis.has_value();
    const std::string flag = is_one_axis ? "--strategy" : "--data-axis";
    return {{{{flag, "zero"}, {"--zero-stage", "1"}}, ranks_},
            {{{flag, "zero"}, {"--zero-stage", "2"}}, ranks_},
            {{{flag, "fsdp"}}, ranks_}};
  }

  [[nodiscard]] std::vector<Change> microbatches() const {
    std::vector<Change> changes;
    for (std::int64_t size = config_.batch.microbatch / 2; size >= 1; size /= 2) {
      changes.push_back({{{"--microbatch", std::to_string(size)}}, ranks_});
    }
    return changes;
  }

  [[nodiscard]] std::vector<Change> recomputations() const {
    if (config_.machine.recompute.kind != RecomputeKind::none) return {};
    return {{{{"--recompute", "gates"}}, ranks_}, {{{"--recompute", "level"}}, ranks_}};
  }

  // Omits the copy of the state for asynchronous checkpoints.
  [[nodiscard]] std::vector<Change> fewer_saves() const {
    if (config_.checkpoint.every.is_never()) return {};
    return {{{{"--checkpoint-every", "0"}}, ranks_}};
  }

  // Fewer replicas per machine.
  [[nodiscard]] std::vector<Change> fewer_ranks() const {
    const bool is_shared = available_.ranks == ranks_ && config_.layout.dp == ranks_;
    std::vector<Change> changes;
    for (std::int64_t ranks = ranks_ / 2; is_shared && ranks >= 1; ranks /= 2) {
      changes.push_back({{{"--microbatch", std::to_string(config_.batch.microbatch)}}, ranks});
    }
    return changes;
  }

  // Ordered by the loss of speed: each way to save memory with each microbatch, the largest first.
  [[nodiscard]] std::vector<Change> all_together(std::int64_t ranks,
                                                 const std::string& strategy) const {
    const Flags no_copy{{"--checkpoint-every", "0"}};
    const Flags again{{"--recompute", "level"}};
    std::vector<Flags> savings{{}, no_copy, again, joined(again, no_copy)};
    if (config_.checkpoint.every.is_never()) savings = {{}, again};
    std::vector<Change> changes;
    for (const Flags& saving : savings) {
      for (std::int64_t size = config_.batch.microbatch; size >= 1; size /= 2) {
        Flags flags{{"--microbatch", std::to_string(size)}};
        if (ranks > 1) flags.insert(flags.begin(), {"--strategy", strategy});
        changes.push_back({joined(flags, saving), ranks});
      }
    }
    return changes;
  }

  // Ranks per machine if `ranks` do the job.
  [[nodiscard]] std::int64_t ranks_together(std::int64_t ranks) const {
    return available_.ranks == 0 ? ranks : std::min(ranks, available_.ranks);
  }

  [[nodiscard]] std::vector<std::string> single_changes() const {
    std::vector<std::string> texts;
    for (const auto& changes :
         {shardings(), microbatches(), recomputations(), fewer_saves(), fewer_ranks()}) {
      if (const auto fit = first_fit(changes)) texts.push_back(text_of(*fit));
    }
    // A limit applies per rank: more ranks help if the state is not sharded yet.
    const bool may_share = available_.ranks == 0 && config_.layout.dp == 1;
    if (!may_share) return texts;
    if (const auto fit = first_fit_on_more_ranks()) texts.push_back(text_of(*fit));
    return texts;
  }

  [[nodiscard]] std::optional<Fit> first_fit_on_more_ranks() const {
    for (const char* strategy : {kSharded, kSplit}) {
      for (std::int64_t ranks = 2 * ranks_; ranks <= kMostRanks; ranks *= 2) {
        const std::vector<Change> changes = all_together(ranks, strategy);
        if (!first_fit({changes.back()})) continue;  // nor do larger ones
        return first_fit(changes);
      }
    }
    return std::nullopt;
  }

  // The smallest of all combined changes, on these ranks or more.
  [[nodiscard]] std::string text_of_least() const {
    std::optional<Fit> least;
    for (std::int64_t ranks = ranks_; ranks <= kMostRanks; ranks *= 2) {
      const Change change = all_together(ranks, kSharded).back();
      const auto bytes = bytes_with(change);
      if (bytes && (!least || *bytes < least->bytes)) least = Fit{change, *bytes};
    }
    constexpr std::string_view kSmaller = "a smaller --seq-len or model";
    return least ? fmt::format("{}: even {} does not fit", kSmaller, text_of(*least))
                 : std::string(kSmaller);
  }

  // "--strategy fsdp --microbatch 1 on 4 ranks (1.2 GiB per rank; needs 2 machines like this one)"
  [[nodiscard]] std::string text_of(const Fit& fit) const {
    const std::int64_t ranks = fit.change.ranks;
    std::string text;
    for (const auto& [flag, value] : fit.change.flags) {
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", flag, value);
    }
    const bool has_threads = config::strategy_of(config_.layout).is_local();
    const bool takes_processes = has_threads && fit.change.flags.front().first == "--strategy";
    if (ranks != ranks_ || takes_processes) {
      text += fmt::format(" on {} rank{}", ranks, ranks == 1 ? "" : "s");
    }
    std::string note = format_bytes(fit.bytes) + (ranks == 1 ? "" : " per rank");
    const std::int64_t here = available_.bytes / std::max<std::int64_t>(1, fit.bytes);
    if (available_.ranks > 0 && ranks > ranks_ && here > 0 && here < ranks) {
      note += fmt::format("; needs {} machines like this one", (ranks + here - 1) / here);
    }
    return fmt::format("{} ({})", text, note);
  }

  const Config& config_;
  AvailableMemory available_;
  std::int64_t ranks_;
};

}  // namespace

std::string largest_part(const MemoryPlan& memory) {
  const MemoryPart& most = *std::ranges::max_element(
      kMemoryParts, {}, [&](const MemoryPart& part) { return memory.*part.bytes; });
  return fmt::format("{} the most, {}", most.phrase, format_bytes(memory.*most.bytes));
}

std::string fitting_settings(const config::Config& config, const AvailableMemory& available) {
  return FitSearch(config, available).text();
}

}  // namespace dtrain::parallel
