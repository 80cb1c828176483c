// From a model and a schedule to what one stage of a pipeline holds and does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/pipeline/run/stage_plan.h"
#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

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

/// A stage's list as actions of single blocks. chunks: the stage's own blocks.
[[nodiscard]] std::vector<Action> block_actions(const StageSchedule& schedule,
                                                std::span<const model::BlockRange> chunks);

}  // namespace dtrain::parallel
