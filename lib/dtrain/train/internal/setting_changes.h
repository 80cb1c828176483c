// Compares the settings of a resumed run with those of its checkpoint; rejects or lists changes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::train {

/// A changed setting, or a changed quantity that is derived from several settings.
struct SettingChange {
  std::string name;  ///< the setting's key, or the derived quantity's name
  std::string saved;
  std::string now;
  config::OnResume rule = config::OnResume::reported;
};

/// Returns the settings whose values differ, train.lr first, then in the schema's order. Omits
/// settings of a single launch, and data files, which are compared by content. A size of 0 counts
/// as the size that it stands for.
///
/// now, saved: resolved.
[[nodiscard]] std::vector<SettingChange> setting_changes(const config::Config& now,
                                                         const config::Config& saved);

/// Returns the learning rates of the step after `step` with both settings, for a warning: changed
/// settings or more steps may raise the rate by orders of magnitude. Beyond its last step, the
/// saved schedule stays at its end. Empty if the rates agree to three digits, or if there is no
/// next step.
[[nodiscard]] std::vector<SettingChange> rate_change(const config::TrainConfig& now,
                                                     const config::TrainConfig& saved,
                                                     std::int64_t step);

/// The refused changes, each as "KEY is A, the checkpoint has B".
struct Refusal {
  std::string changes = {};     ///< empty if nothing is refused
  bool needs_new_data = false;  ///< true if --new-data would allow all of them
};

/// Returns the changes that are never allowed or, unless has_new_data, that require new data.
/// has_new_data: the run switches to other data.
[[nodiscard]] Refusal refusal_of(const std::vector<SettingChange>& changes, bool has_new_data);

/// True if the changes affect the bits of later steps.
[[nodiscard]] bool changes_results(const std::vector<SettingChange>& changes);

/// Formats the rows in aligned columns under a header; the last line has no newline.
[[nodiscard]] std::string table_of(const std::vector<SettingChange>& changes);

/// Returns whether gradient norms of the resumed run are comparable to the saved ones. False if
/// gradients are compressed differently or under another layout: the norms then differ, and the
/// whole error feedback may be sent at once.
[[nodiscard]] bool have_equal_norms(const config::Config& now, const config::Config& saved);

}  // namespace dtrain::train
