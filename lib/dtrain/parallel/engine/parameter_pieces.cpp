#include "dtrain/parallel/engine/parameter_pieces.h"

#include <utility>

#include "dtrain/checkpoint/format/box.h"

namespace dtrain::parallel {

void add_parameter_pieces(const EngineSetup& setup, param::ParameterId id, const std::string& name,
                          const checkpoint::Replica& replica, const param::Arena& arena,
                          checkpoint::State& state) {
  const param::ArenaLayout& layout = setup.layout;
  const param::ElementRange whole = layout.range(id);
  const param::ElementRange own = layout.range_in(id, setup.shard());
  if (own.is_empty()) return;
  const param::ParameterSpec& spec = setup.model.parameters[id];
  std::int64_t begin = own.begin;
  for (checkpoint::Box& box : checkpoint::format::boxes_of_run(
           layout.shape(id), own.begin - whole.begin, own.end - whole.begin)) {
    const std::int64_t end = begin + checkpoint::format::num_elements(box.sizes);
    const at::Tensor values = arena.slice({begin, end}).view(box.sizes);
    begin = end;
    state.push_back({.name = name + spec.name,
                     .global_shape = spec.whole_shape(),
                     .box = setup.placement.in_whole(id, std::move(box)),
                     .tensor = values,
                     .replica = replica});
  }
}

}  // namespace dtrain::parallel
