// The part of a model that one stage of a pipeline computes, and its list of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/action.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {

using ParameterHolders = base::IndexedVector<param::ParameterId, std::vector<std::int64_t>>;

/// Pure data. The default is a rank that computes the whole model.
struct StagePlan {
  /// Passes and messages of a step; empty: every microbatch through all blocks and back.
  std::vector<Action> actions = {};
  /// First blocks of the model's parts that this rank computes, among its own blocks; between two
  /// chunks other stages compute.
  std::vector<BlockId> chunk_begins = {BlockId(0)};
  /// Parameters at which the stages that hold them change.
  std::vector<param::ParameterId> region_begins = {param::ParameterId(0)};
  /// The stages that hold each parameter, ascending; empty: there is one stage.
  ParameterHolders holders = {};
};

}  // namespace dtrain::parallel
