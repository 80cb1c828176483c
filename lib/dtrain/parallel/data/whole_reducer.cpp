#include "dtrain/parallel/data/whole_reducer.h"

namespace dtrain::parallel {

WholeReducer::WholeReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate)
    : layout_(setup.layout),
      shard_(groups.shards().rank()),
      store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
             setup.options.reduction),
      reductions_(setup, groups, allocate) {}

void WholeReducer::reduce(param::UnitId unit) {
  const param::ElementRange whole = layout_.unit_range(unit);
  store_.finish(whole);
  const param::ElementRange own = layout_.shard_range(unit, shard_);
  const at::Tensor shard = store_.gradients().slice(own);
  reductions_.begin(store_.gradients().slice(whole), shard,
                    [this, own, shard] { reductions_.begin_replicas(own, shard); });
}

MemoryPlan WholeReducer::memory(const ReducerSetup& setup) {
  const ReducerOptions& options = setup.options;
  MemoryPlan memory = UnitReductions::memory(setup, setup.layout.num_trained());
  memory.gradients += GradientStore::bytes(setup.layout, options.dtype, options.num_microbatches,
                                           options.reduction);
  return memory;
}

}  // namespace dtrain::parallel
