#include "dtrain/parallel/data/whole_reducer.h"

namespace dtrain::parallel {

WholeReducer::WholeReducer(const param::ArenaLayout& layout, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate, const ReducerOptions& options)
    : layout_(layout),
      shard_(groups.shards().rank()),
      store_(layout, options.dtype, allocate, options.num_microbatches, options.reduction),
      reductions_(groups, options.reduce_dtype) {}

void WholeReducer::reduce(std::int64_t unit) {
  const param::ElementRange whole = layout_.unit_range(unit);
  store_.finish(whole);
  const at::Tensor shard = store_.gradients().slice(layout_.shard_range(unit, shard_));
  reductions_.begin(store_.gradients().slice(whole), shard,
                    [this, shard] { reductions_.begin_replicas(shard); });
}

}  // namespace dtrain::parallel
