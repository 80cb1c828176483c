// What a run that resumes changes of its checkpoint's settings: refused, or shown as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::train {

/// A row of the table: a setting, or what follows from several.
struct SettingChange {
  std::string name;  ///< the setting's key, for one
  std::string saved;
  std::string now;
  config::OnResume rule = config::OnResume::reported;
};

/// The settings whose values differ, train.lr first, then in the schema's order. Without those of
/// one start, and without files of data, which are compared by content.
///
/// now, saved: resolved.
[[nodiscard]] std::vector<SettingChange> setting_changes(const config::Config& now,
                                                         const config::Config& saved);

/// The learning rates of `step` and of the next step; empty if `saved` gives the next step the same
/// rate, or if there is none. Changed settings or more steps may raise it by orders of magnitude.
[[nodiscard]] std::vector<SettingChange> rate_change(const config::TrainConfig& now,
                                                     const config::TrainConfig& saved,
                                                     std::int64_t step);

/// The changes that no run may make, or none that keeps its data, each as "KEY is A, the checkpoint
/// has B"; empty: there are none. has_new_data: the run begins other data.
struct Refusal {
  std::string changes = {};
  bool needs_new_data = false;  ///< which allows all of them
};
[[nodiscard]] Refusal refusal_of(const std::vector<SettingChange>& changes, bool has_new_data);

/// True if bits of later steps change.
[[nodiscard]] bool changes_results(const std::vector<SettingChange>& changes);

/// The rows with aligned columns under a head, the last one without a newline.
[[nodiscard]] std::string table_of(const std::vector<SettingChange>& changes);

/// False where gradients are compressed in another way or by another layout: their norms are on
/// another level, and what ranks have not sent yet may be due at once.
[[nodiscard]] bool have_equal_norms(const config::Config& now, const config::Config& saved);

}  // namespace dtrain::train
