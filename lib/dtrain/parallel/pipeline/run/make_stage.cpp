#include "dtrain/parallel/pipeline/run/make_stage.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/model/part.h"

namespace dtrain::parallel {
namespace {

using model::BlockRange;

// By parameter of the whole model: the stages whose blocks list it.
std::vector<std::vector<std::int64_t>> stages_by_parameter(const model::Model& model,
                                                           const StagePlace& place) {
  std::vector<std::set<std::int64_t>> stages(model.parameters.size());
  for (std::size_t part = 0; part < place.parts.size(); ++part) {
    const std::int64_t stage = static_cast<std::int64_t>(part) % place.shape.stages;
    for (std::int64_t block = place.parts[part].begin; block < place.parts[part].end; ++block) {
      for (const param::ParameterId id :
           model.blocks[static_cast<std::size_t>(block)]->parameters()) {
        stages[static_cast<std::size_t>(id)].insert(stage);
      }
    }
  }
  std::vector<std::vector<std::int64_t>> result;
  for (const auto& of_one : stages) result.emplace_back(of_one.begin(), of_one.end());
  return result;
}

std::vector<BlockRange> parts_of_stage(const StagePlace& place) {
  std::vector<BlockRange> parts;
  for (std::int64_t chunk = 0; chunk < place.shape.chunks(); ++chunk) {
    parts.push_back(place.parts[static_cast<std::size_t>(place.shape.part(place.stage, chunk))]);
  }
  return parts;
}

// The same blocks, numbered among the stage's own.
std::vector<BlockRange> own_chunks(std::span<const BlockRange> parts) {
  std::vector<BlockRange> chunks;
  std::int64_t next = 0;
  for (const BlockRange& part : parts) {
    chunks.push_back({next, next + part.size()});
    next += part.size();
  }
  return chunks;
}

std::vector<param::ParameterId> regions_of(const WholeParameters& whole) {
  std::vector<param::ParameterId> begins{0};
  for (std::size_t id = 1; id < whole.numbers.size(); ++id) {
    const auto stages = [&](std::size_t of) -> const std::vector<std::int64_t>& {
      return whole.stages[static_cast<std::size_t>(whole.numbers[of])];
    };
    if (stages(id) != stages(id - 1)) begins.push_back(static_cast<param::ParameterId>(id));
  }
  return begins;
}

}  // namespace

std::vector<Action> block_actions(const StageSchedule& schedule,
                                  std::span<const BlockRange> chunks) {
  std::vector<Action> actions;
  for (const auto& [kind, chunk, microbatch] : schedule) {
    const BlockRange& blocks = chunks[static_cast<std::size_t>(chunk)];
    switch (kind) {
      case ActionKind::forward:
        for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
          actions.push_back({kind, block, microbatch});
        }
        break;
      case ActionKind::backward:
        for (std::int64_t block = blocks.end - 1; block >= blocks.begin; --block) {
          actions.push_back({kind, block, microbatch});
        }
        break;
      case ActionKind::send_activation:
      case ActionKind::recv_gradient:
        actions.push_back({kind, blocks.end - 1, microbatch});
        break;
      case ActionKind::recv_activation:
      case ActionKind::send_gradient:
        actions.push_back({kind, blocks.begin, microbatch});
        break;
      default:
        DTRAIN_CHECK(false);
    }
  }
  return actions;
}

Stage make_stage(std::unique_ptr<model::Model> model, std::vector<param::ParameterSpec> specs,
                 const StagePlace& place) {
  if (place.shape.stages == 1) {
    WholeParameters whole = whole_parameters(*model);
    whole.specs = std::move(specs);
    return {.model = std::move(model), .plan = {}, .whole = std::move(whole), .place = place};
  }
  DTRAIN_CHECK(static_cast<std::int64_t>(place.parts.size()) == place.shape.num_parts());
  WholeParameters whole{
      .specs = std::move(specs), .numbers = {}, .stages = stages_by_parameter(*model, place)};
  const std::vector<BlockRange> parts = parts_of_stage(place);
  const std::vector<BlockRange> chunks = own_chunks(parts);
  model::ModelPart part = model::take_part(std::move(model), parts);
  whole.numbers = std::move(part.numbers);
  StagePlan plan;
  const auto schedules = make_pipeline_schedule(place.shape);
  plan.actions = block_actions(schedules[static_cast<std::size_t>(place.stage)], chunks);
  plan.chunk_begins.clear();
  for (const BlockRange& chunk : chunks) plan.chunk_begins.push_back(chunk.begin);
  plan.region_begins = regions_of(whole);
  return {.model = std::move(part.model),
          .plan = std::move(plan),
          .whole = std::move(whole),
          .place = place};
}

}  // namespace dtrain::parallel
