#include "toy/settings.h"

#include "dtrain/base/error.h"
#include "dtrain/config/family.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config::toy {
namespace {

using namespace rows;

constexpr Setting kSettings[] = {
    {"model.toy_hidden", "--toy-hidden", "H", "", "hidden units of a level", kTrain,
     kFamilyField<&Settings::hidden>, between(1, 1 << 20), kFixed},
    {"model.toy_groups", "--toy-groups", "G", "", "equal groups of the hidden units", kTrain,
     kFamilyField<&Settings::groups>, between(1, 1 << 10), kFixed},
    {"model.toy_tie_layers", "--toy-tie-layers", "on|off", "", "layers share one set of matrices",
     kTrain, kFamilyField<&Settings::tie_layers>, kFixed},
};

void check(const ModelConfig& model) {
  const auto [hidden, groups, ties] = model.family.get<Settings>();
  if (hidden % groups == 0) return;
  base::fail(base::ErrorKind::usage,
             "--toy-hidden {} is no multiple of --toy-groups {}: change one of them", hidden,
             groups);
}

}  // namespace

const Family& family() {
  static constexpr Family kFamily{.name = "toy",
                                  .settings = kSettings,
                                  .defaults = [] { return std::any(Settings()); },
                                  .check = check};
  return kFamily;
}

}  // namespace dtrain::config::toy
