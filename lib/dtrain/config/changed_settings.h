// Which settings a user has chosen.
#pragma once

#include <string>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// "model.levels=2 train.lr=0.003 and 3 more": the settings of train in which `asked` differs from
/// the defaults, in the schema's order. Without data, run folder and resume, which every run gives.
/// Empty if there are none.
[[nodiscard]] std::string changed_settings(const Config& asked);

}  // namespace dtrain::config
