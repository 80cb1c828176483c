// The part of a model that one stage of a pipeline computes, and its list of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/engine/action.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {

/// Pure data. The default is a rank that computes the whole model.
struct StagePlan {
  /// Passes and messages of a step; empty: every microbatch through all blocks and back.
  std::vector<Action> actions = {};
  /// First blocks of the model's parts that this rank computes, among its own blocks; between two
  /// chunks other stages compute.
  std::vector<std::int64_t> chunk_begins = {0};
  /// Parameters at which the stages that hold them change.
  std::vector<param::ParameterId> region_begins = {0};

  /// The levels of each chunk.
  [[nodiscard]] std::vector<model::BlockRange> levels(const model::Model& model) const;
};

}  // namespace dtrain::parallel
