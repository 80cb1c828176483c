// Cuts a model into the part of one pipeline stage, and makes the stage's action list.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/pipeline/schedule.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {

/// Pipeline stages that hold each parameter, ascending.
using ParameterHolders = base::IndexedVector<param::ParameterId, std::vector<std::int64_t>>;

/// Contents of a pipeline stage. The default is a rank that computes the whole model.
struct StagePlan {
  /// Passes and messages of a step; empty: sequential_actions().
  std::vector<Action> actions = {};
  /// First block of each of this rank's chunks, numbered among its own blocks.
  std::vector<BlockId> chunk_begins = {BlockId(0)};
  /// First parameter of each run of parameters that the same stages hold; no unit crosses these.
  std::vector<param::ParameterId> region_begins = {param::ParameterId(0)};
  /// Stages that hold each parameter, ascending; empty: one stage.
  ParameterHolders holders = {};
};

/// A stage's index in a pipeline, and the blocks of every part.
struct StagePosition {
  PipelineShape shape;
  std::vector<model::BlockRange> parts;  ///< by part; blocks of the whole model
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
