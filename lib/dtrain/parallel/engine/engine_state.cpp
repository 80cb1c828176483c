#include "dtrain/parallel/engine/engine_state.h"

#include <utility>

namespace dtrain::parallel {
namespace {

checkpoint::Replica replica_of(const comm::ProcessGroup* group) {
  if (group == nullptr) return {};
  return {.index = group->rank(), .count = group->size()};
}

// One rank's values of a parameter, in as many boxes as the cut of its shard takes.
void add_parameter(const EngineState& engine, param::ParameterId id, const std::string& prefix,
                   const param::Arena& arena, checkpoint::State& state) {
  const param::ArenaLayout& layout = engine.layout;
  const param::ElementRange whole = layout.range(id);
  const param::ElementRange own = layout.range_in(id, engine.data.shard());
  if (own.is_empty()) return;
  const bool is_sharded = layout.num_shards() > 1;
  const checkpoint::Replica replica = engine.placement.replica(
      id, replica_of(is_sharded ? engine.data.replicas : &engine.data.all));
  const param::ParameterSpec& spec = engine.model.parameters[static_cast<std::size_t>(id)];
  std::int64_t begin = own.begin;
  for (checkpoint::Box& box : checkpoint::format::boxes_of_run(
           layout.shape(id), own.begin - whole.begin, own.end - whole.begin)) {
    const std::int64_t end = begin + checkpoint::format::num_elements(box.sizes);
    const at::Tensor values = arena.slice({begin, end}).view(box.sizes);
    begin = end;
    state.push_back({.name = prefix + spec.name,
                     .global_shape = spec.whole_shape(),
                     .box = engine.placement.in_whole(id, std::move(box)),
                     .tensor = values,
                     .replica = replica});
  }
}

// What all ranks hold.
void add_common(const EngineState& engine, const std::string& name, const at::Tensor& values,
                checkpoint::State& state) {
  state.push_back({.name = name,
                   .global_shape = values.sizes().vec(),
                   .box = checkpoint::format::whole(values.sizes()),
                   .tensor = values,
                   .replica = replica_of(&engine.world)});
}

}  // namespace

checkpoint::State pieces_of(const EngineState& engine) {
  checkpoint::State state;
  for (param::ParameterId id = 0; id < engine.layout.num_parameters(); ++id) {
    add_parameter(engine, id, checkpoint::kWeightPrefix, engine.masters, state);
    for (const optim::NamedArena& part : engine.optimizer.state()) {
      add_parameter(engine, id, "optimizer." + part.name + ".", *part.arena, state);
    }
  }
  add_common(engine, "optimizer.num_updates", engine.optimizer.num_updates(), state);
  if (engine.scaler != nullptr) add_common(engine, kLossScale, engine.scaler->state(), state);
  return state;
}

}  // namespace dtrain::parallel
