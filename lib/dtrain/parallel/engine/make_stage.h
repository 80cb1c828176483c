// The part of a model that one stage of a pipeline holds, and its list of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/pipeline/schedule.h"
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

/// Which of a pipeline's stages, and which blocks its parts consist of.
struct StagePlace {
  PipelineShape shape;
  std::vector<model::BlockRange> parts;  ///< of the whole model, by part
  std::int64_t stage = 0;
};

struct Stage {
  std::unique_ptr<model::Model> model;  ///< its blocks, chunk after chunk
  StagePlan plan;
  StagePlace place;
};

/// model: all blocks, with the parameters as this rank's place on the tensor axis cuts them. A
/// pipeline of one stage is the whole model.
[[nodiscard]] Stage make_stage(std::unique_ptr<model::Model> model, const StagePlace& place);

}  // namespace dtrain::parallel
