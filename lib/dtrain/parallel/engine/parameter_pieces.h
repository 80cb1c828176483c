// One rank's values of a parameter as pieces of a checkpoint.
#pragma once

#include <string>

#include "dtrain/checkpoint/state.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Adds the parameter's values in an arena, in as many boxes as the cut of the rank's shard takes;
/// they share memory. name: without the parameter's own, which follows.
void add_parameter_pieces(const EngineSetup& setup, param::ParameterId id, const std::string& name,
                          const checkpoint::Replica& replica, const param::Arena& arena,
                          checkpoint::State& state);

}  // namespace dtrain::parallel
