// Extracts the part of a model that one pipeline stage holds, and makes the stage's action list.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/pipeline/schedule.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {

/// For each parameter, the pipeline stages that hold it, ascending.
using ParameterHolders = base::IndexedVector<param::ParameterId, std::vector<std::int64_t>>;

/// The contents of a pipeline stage. The default is a rank that computes the whole model.
struct StagePlan {
  /// Passes and messages of a step; empty: sequential_actions().
  std::vector<Action> actions = {};
  /// First block of each of this rank's chunks; a rank numbers its blocks from 0.
  std::vector<BlockId> chunk_begins = {BlockId(0)};
  /// First parameter of each region, that is, of consecutive parameters that the same stages hold.
  /// No unit crosses a region's boundary.
  std::vector<param::ParameterId> region_begins = {param::ParameterId(0)};
  /// Stages that hold each parameter, ascending; empty for a single stage.
  ParameterHolders holders = {};
};

/// A stage's index in its pipeline, and the blocks of every part.
struct StagePosition {
  PipelineShape shape;
  std::vector<model::BlockRange> parts;  ///< for each part, its blocks of the whole model
  std::int64_t stage = 0;
};

/// A stage's model and plan.
struct Stage {
  std::unique_ptr<model::Model> model;  ///< the stage's blocks, in order of chunks
  StagePlan plan;
  StagePosition place;
};

/// Makes a stage; a single-stage pipeline keeps the whole model. model: all blocks, with parameters
/// sliced for this rank's tensor-parallel index.
[[nodiscard]] Stage make_stage(std::unique_ptr<model::Model> model, const StagePosition& place);

}  // namespace dtrain::parallel
