#include "dtrain/parallel/data/whole_reducer.h"

namespace dtrain::parallel {

WholeReducer::WholeReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate)
    : layout_(setup.layout),
      shard_(groups.shards().rank()),
      store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
             setup.options.reduction),
      reductions_(groups, setup.options.codec) {}

void WholeReducer::reduce(param::UnitId unit) {
  const param::ElementRange whole = layout_.unit_range(unit);
  store_.finish(whole);
  const at::Tensor shard = store_.gradients().slice(layout_.shard_range(unit, shard_));
  reductions_.begin(store_.gradients().slice(whole), shard,
                    [this, shard] { reductions_.begin_replicas(shard); });
}

MemoryPlan WholeReducer::memory(const ReducerSetup& setup) {
  const ReducerOptions& options = setup.options;
  MemoryPlan memory = UnitReductions::memory(setup, setup.layout.num_elements());
  memory.gradients = GradientStore::bytes(setup.layout, options.dtype, options.num_microbatches,
                                          options.reduction);
  return memory;
}

}  // namespace dtrain::parallel
