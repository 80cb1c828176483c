#include "dtrain/config/schema/schema.h"

#include <algorithm>
#include <vector>

#include "dtrain/config/family.h"
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config {
namespace {

// A family's own "model." settings precede this one.
constexpr std::string_view kAfterFamilies = "model.vocab";

constexpr Group kGroups[] = {{"model", "model."},
                             {"data", "data."},
                             {"batch", "batch."},
                             {"training", "train."},
                             {"layout", "layout."},
                             {"machine", "machine."},
                             {"reports", "report."},
                             {"checkpoints", "checkpoint."},
                             {"run folder", "run."},
                             {"generation", "generate."},
                             {"verification", "verify."},
                             {"checkpoint export", "export."},
                             {"checkpoint import", "import."},
                             {"planning", "plan."}};

std::vector<Setting> common_settings() {
  std::vector<Setting> all;
  for (const std::span<const Setting> table :
       {tables::model(), tables::data(), tables::training(), tables::layout(), tables::machine(),
        tables::reports(), tables::commands()}) {
    all.insert(all.end(), table.begin(), table.end());
  }
  return all;
}

// Joins all tables, those of the model families included.
std::vector<Setting> all_settings() {
  std::vector<Setting> all = common_settings();
  for (const Family* family : families()) {
    for (Setting row : family->settings) {
      const bool is_of_model = row.key.starts_with("model.");
      if (is_of_model) row.family = family->name;
      all.insert(is_of_model ? std::ranges::find(all, kAfterFamilies, &Setting::key) : all.end(),
                 row);
    }
  }
  std::ranges::find(all, "model.name", &Setting::key)->allowed.choices = family_names();
  return all;
}

}  // namespace

std::span<const Setting> settings() noexcept {
  static const std::vector<Setting> all = all_settings();
  return all;
}
std::span<const Group> groups() noexcept { return kGroups; }

}  // namespace dtrain::config
