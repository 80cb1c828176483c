#include "dtrain/parallel/engine/make_stage.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/model/model.h"

namespace dtrain::parallel {
namespace {

using model::BlockRange;

// Returns the stages whose blocks use each parameter.
ParameterHolders holders_of(const model::Model& model, const StagePosition& place) {
  base::IndexedVector<param::ParameterId, std::set<std::int64_t>> stages(model.parameters.size());
  for (std::size_t part = 0; part < place.parts.size(); ++part) {
    const std::int64_t stage = static_cast<std::int64_t>(part) % place.shape.stages;
    for (const BlockId block : place.parts[part].ids()) {
      for (const param::ParameterId id : model.blocks[block]->parameters()) {
        stages[id].insert(stage);
      }
    }
  }
  ParameterHolders result;
  for (const auto& of_one : stages) result.push_back({of_one.begin(), of_one.end()});
  return result;
}

std::vector<BlockRange> parts_of_stage(const StagePosition& place) {
  std::vector<BlockRange> parts;
  for (std::int64_t chunk = 0; chunk < place.shape.chunks(); ++chunk) {
    parts.push_back(place.parts[static_cast<std::size_t>(place.shape.part(place.stage, chunk))]);
  }
  return parts;
}

// Renumbers the blocks of `parts` among the stage's own.
std::vector<BlockRange> own_chunks(std::span<const BlockRange> parts) {
  std::vector<BlockRange> chunks;
  BlockId next;
  for (const BlockRange& part : parts) {
    chunks.push_back({next, next + part.size()});
    next = chunks.back().end;
  }
  return chunks;
}

// Returns the first parameter of each region held by the stage; parameters that it does not hold
// start none.
std::vector<param::ParameterId> regions_of(const ParameterHolders& holders, std::int64_t stage) {
  std::vector<param::ParameterId> begins{param::ParameterId(0)};
  for (const param::ParameterId id : holders.ids()) {
    const bool is_held =
        std::find(holders[id].begin(), holders[id].end(), stage) != holders[id].end();
    // Stages that share parameters must cut them alike, whatever else each holds.
    if (is_held && id > begins.front() && holders[id] != holders[id - 1]) begins.push_back(id);
  }
  return begins;
}

// Expands a stage's schedule to actions of single blocks. chunks: the stage's own blocks.
std::vector<Action> block_actions(const StageSchedule& schedule,
                                  std::span<const BlockRange> chunks) {
  std::vector<Action> actions;
  for (const auto& [kind, chunk, microbatch] : schedule) {
    const BlockRange& blocks = chunks[static_cast<std::size_t>(chunk)];
    switch (kind) {
      case ActionKind::forward:
        for (const BlockId block : blocks.ids()) actions.push_back({kind, block, microbatch});
        break;
      case ActionKind::backward:
        for (BlockId block = blocks.end; block > blocks.begin;) {
          actions.push_back({kind, --block, microbatch});
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

}  // namespace

Stage make_stage(std::unique_ptr<model::Model> model, const StagePosition& place) {
  if (place.shape.stages == 1) return {.model = std::move(model), .plan = {}, .place = place};
  DTRAIN_CHECK(std::ssize(place.parts) == place.shape.num_parts());
  const std::vector<BlockRange> parts = parts_of_stage(place);
  const std::vector<BlockRange> chunks = own_chunks(parts);
  StagePlan plan;
  plan.holders = holders_of(*model, place);
  plan.region_begins = regions_of(plan.holders, place.stage);
  plan.actions = block_actions(make_stage_schedule(place.shape, place.stage), chunks);
  plan.chunk_begins.clear();
  for (const BlockRange& chunk : chunks) plan.chunk_begins.push_back(chunk.begin);
  return {.model = model::extract_blocks(std::move(model), parts),
          .plan = std::move(plan),
          .place = place};
}

}  // namespace dtrain::parallel
