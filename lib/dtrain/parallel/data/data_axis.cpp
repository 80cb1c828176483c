#include "dtrain/parallel/data/data_axis.h"

#include "dtrain/parallel/data/bucket_reducer.h"
#include "dtrain/parallel/data/shard_reducer.h"

namespace dtrain::parallel {
namespace {

std::unique_ptr<GradientReducer> make_reducer(const param::ArenaLayout& layout,
                                              const mesh::MeshGroups& groups,
                                              const param::ArenaAllocator& allocate,
                                              const DataAxisOptions& options,
                                              const UnitSchedule& schedule) {
  const ReducerOptions reducer{.dtype = options.master_dtype,
                               .reduce_dtype = options.reduce_dtype,
                               .num_microbatches = options.num_microbatches,
                               .reduction = options.reduction};
  if (groups.shards().size() == 1) {
    return std::make_unique<BucketReducer>(layout, groups.along(mesh::Axis::dp), allocate, reducer);
  }
  if (!options.plan.keeps_gradient_shards()) {
    return std::make_unique<WholeReducer>(layout, groups, allocate, reducer);
  }
  return std::make_unique<ShardReducer>(layout, groups, allocate, reducer, schedule);
}

}  // namespace

DataAxis::DataAxis(const model::Model& model, const param::ArenaLayout& layout,
                   const mesh::MeshGroups& groups, const param::ArenaAllocator& allocate,
                   const ActionLists& lists, const DataAxisOptions& options)
    : uses_(unit_uses(model, layout, options.recompute)),
      step_{.actions = lists.step,
            .schedule = make_unit_schedule(lists.step, uses_, options.plan.schedule)},
      evaluation_{.actions = lists.evaluation,
                  .schedule = make_unit_schedule(lists.evaluation, uses_, options.plan.schedule)},
      parameters_(layout, groups.shards(), allocate,
                  {.master_dtype = options.master_dtype,
                   .compute_dtype = options.compute_dtype,
                   .keeps_units = options.plan.schedule.reshard == Reshard::never,
                   .disk = options.disk}),
      gradients_(make_reducer(layout, groups, allocate, options, step_.schedule)) {}

void DataAxis::before(const Pass& pass, std::size_t index) {
  for (const UnitEvent& event : pass.schedule.before[index]) run(event);
  for (const std::int64_t unit : uses_.of(pass.actions[index])) parameters_.wait(unit);
}

void DataAxis::after(const Pass& pass, std::size_t index) {
  for (const UnitEvent& event : pass.schedule.after[index]) run(event);
}

void DataAxis::run(const UnitEvent& event) {
  switch (event.kind) {
    case UnitEventKind::gather:
      return parameters_.begin_gather(event.unit);
    case UnitEventKind::free:
      return parameters_.free(event.unit);
    case UnitEventKind::reduce:
      return gradients_->reduce(event.unit);
  }
}

}  // namespace dtrain::parallel
