// The settings in which all ranks of a job must agree.
#pragma once

#include <vector>

#include "dtrain/comm/exchange.h"
#include "dtrain/config/config.h"

namespace dtrain::job {

/// The settings of `train`, for comm::check_agreement. Left out is what may differ between nodes
/// since no result depends on it: --nnodes, --interface, and --threads except where it changes
/// bits. Of what follows from a rank's node unless it is given, the name says how to give it.
[[nodiscard]] std::vector<comm::NamedValue> agreed_settings(const config::Config& config);

}  // namespace dtrain::job
