#include "dtrain/train/internal/setting_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/schema/rows.h"
#include "dtrain/optim/schedule.h"

namespace dtrain::train {
namespace {

using config::OnResume;

constexpr std::string_view kRate = "train.lr";
constexpr std::string_view kFiles[] = {"data.train", "data.validation"};

// The value, or "-" if it is empty.
std::string_view shown(std::string_view value) { return value.empty() ? "-" : value; }

}  // namespace

std::vector<SettingChange> setting_changes(const config::Config& now, const config::Config& saved) {
  config::Config ours = now;
  config::Config theirs = saved;
  for (config::Config* each : {&ours, &theirs}) {
    each->model = config::with_resolved_sizes(each->model);
  }
  std::vector<SettingChange> changes;
  for (const config::Setting& setting : config::settings()) {
    const bool is_file = std::ranges::count(kFiles, setting.key) > 0;
    const OnResume rule = setting.on_resume(now, saved);
    if (!setting.is_used(config::Command::train, now) || is_file ||
        rule == OnResume::not_compared || config::repeats_value(setting, now, saved)) {
      continue;
    }
    changes.push_back({.name = std::string(setting.key),
                       .saved = config::value_text(setting, theirs),
                       .now = config::value_text(setting, ours),
                       .rule = rule});
  }
  std::ranges::stable_partition(changes, [](const auto& change) { return change.name == kRate; });
  return changes;
}

std::vector<SettingChange> rate_change(const config::TrainConfig& now,
                                       const config::TrainConfig& saved, std::int64_t step) {
  if (!saved.lr || !saved.warmup_steps) return {};  // as of imported weights
  const auto next_rate = [&](const config::TrainConfig& train) {
    return fmt::format("{:.3g} (step {})", optim::schedule_of(train).rate(step), step + 1);
  };
  const SettingChange change{
      .name = "learning rate", .saved = next_rate(saved), .now = next_rate(now)};
  if (step >= now.steps || change.saved == change.now) return {};
  return {change};
}

Refusal refusal_of(const std::vector<SettingChange>& changes, bool has_new_data) {
  Refusal refusal{.needs_new_data = true};
  for (const SettingChange& change : changes) {
    const bool is_of_data = change.rule == OnResume::needs_new_data;
    if (change.rule != OnResume::fixed && (!is_of_data || has_new_data)) continue;
    refusal.changes +=
        fmt::format("{}{} is {}, the checkpoint has {}", refusal.changes.empty() ? "" : "; ",
                    change.name, shown(change.now), shown(change.saved));
    refusal.needs_new_data = refusal.needs_new_data && is_of_data;
  }
  return refusal;
}

bool changes_results(const std::vector<SettingChange>& changes) {
  return std::ranges::any_of(changes,
                             [](const auto& change) { return change.rule != OnResume::free; });
}

std::string table_of(const std::vector<SettingChange>& changes) {
  std::vector<SettingChange> rows{{.name = "", .saved = "checkpoint", .now = "now"}};
  rows.insert(rows.end(), changes.begin(), changes.end());
  std::size_t name_width = 0;
  std::size_t saved_width = 0;
  for (const SettingChange& row : rows) {
    name_width = std::max(name_width, row.name.size());
    saved_width = std::max(saved_width, row.saved.size());
  }
  std::string text;
  for (const SettingChange& row : rows) {
    text += fmt::format("{}  {:<{}}  {:<{}}  {}", text.empty() ? "" : "\n", row.name, name_width,
                        shown(row.saved), saved_width, shown(row.now));
  }
  return text;
}

bool have_equal_norms(const config::Config& now, const config::Config& saved) {
  const auto compresses = config::conditions::kCompresses;
  if (!compresses(now) && !compresses(saved)) return true;
  const auto terms = [&](const config::Config& config) {
    const config::MachineConfig& machine = config.machine;
    const config::LayoutConfig& layout = config.layout;
    return std::tuple(compresses(config), machine.compress, machine.compress_warmup,
                      machine.compress_min_elements, layout.pp, layout.dp, layout.tp,
                      layout.shard_size);
  };
  return terms(now) == terms(saved);
}

}  // namespace dtrain::train
