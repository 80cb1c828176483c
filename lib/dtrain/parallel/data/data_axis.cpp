#include "dtrain/parallel/data/data_axis.h"

#include "dtrain/base/trace.h"
#include "dtrain/parallel/data/internal/bucket_reducer.h"
#include "dtrain/parallel/data/internal/sharded_reducers.h"

namespace dtrain::parallel {
namespace {

const ReducerKind& reducer_of(const DataPlan& plan) {
  if (plan.reducer != nullptr) return *plan.reducer;
  if (plan.shard_size == 1) return kReducerKind<BucketReducer>;
  return plan.keeps_gradient_shards() ? kReducerKind<GradientShardReducer>
                                      : kReducerKind<FullGradientReducer>;
}

ReducerSetup reducer_setup(const param::ArenaLayout& layout, const UnitSchedule& schedule,
                           const DataAxisOptions& options) {
  return {.layout = layout,
          .schedule = schedule,
          .num_ranks = options.plan.num_ranks,
          .options = {.dtype = options.precision.master,
                      .codec = dtype_codec(options.precision.reduce),
                      .num_microbatches = options.num_microbatches,
                      .reduction = options.reduction,
                      .compression = options.plan.compression}};
}

std::string_view name_of(UnitEventKind kind) {
  switch (kind) {
    case UnitEventKind::gather:
      return "gather unit";
    case UnitEventKind::free:
      return "release unit";
    case UnitEventKind::reduce:
      return "reduce unit";
  }
  return {};
}

ParameterStore::Options store_options(const DataAxisOptions& options) {
  return {.master_dtype = options.precision.master,
          .compute_dtype = options.precision.compute,
          .keeps_units = options.plan.schedule.reshard == Reshard::never,
          .offload = options.offload};
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
      parameters_(layout, groups.gathers(), allocate, store_options(options)),
      gradients_(reducer_of(options.plan)
                     .make(reducer_setup(layout, step_.schedule, options), groups, allocate)) {}

MemoryPlan DataAxis::memory(const model::Model& model, const param::ArenaLayout& layout,
                            std::span<const Action> step, const DataAxisOptions& options) {
  const UnitSchedule schedule =
      make_unit_schedule(step, unit_uses(model, layout, options.recompute), options.plan.schedule);
  return ParameterStore::memory(layout, schedule, store_options(options)) +
         reducer_of(options.plan).memory(reducer_setup(layout, schedule, options));
}

DataTraffic DataAxis::traffic(const model::Model& model, const param::ArenaLayout& layout,
                              std::span<const Action> step, const DataAxisOptions& options) {
  if (layout.num_shards() == 1) return {};
  const UnitSchedule schedule =
      make_unit_schedule(step, unit_uses(model, layout, options.recompute), options.plan.schedule);
  const ReducerTraffic reduced =
      reducer_of(options.plan).traffic(reducer_setup(layout, schedule, options));
  const bool keeps_units = options.plan.schedule.reshard == Reshard::never;
  DataTraffic traffic{.reductions = reduced.reductions,
                      .reduction_bytes = reduced.bytes,
                      .max_gathered = keeps_units ? layout.num_units() : schedule.max_gathered};
  for (const param::UnitId unit : layout.units()) {
    // Units that stay gathered are gathered once per step, after the update.
    const std::int64_t updates = layout.is_frozen(unit) ? 0 : 1;
    const std::int64_t gathers =
        keeps_units ? updates : schedule.count(UnitEventKind::gather, unit);
    const std::int64_t shard = layout.unit_range(unit).size() / layout.num_shards();
    traffic.gathers += gathers;
    traffic.gather_bytes +=
        gathers * param::bytes_of(shard * (layout.num_shards() - 1), options.precision.compute);
  }
  return traffic;
}

void DataAxis::before(const ScheduledActions& list, std::size_t index) {
  for (const UnitEvent& event : list.schedule.before[index]) run(event);
  for (const param::UnitId unit : uses_.of(list.actions[index])) parameters_.wait(unit);
}

void DataAxis::after(const ScheduledActions& list, std::size_t index) {
  for (const UnitEvent& event : list.schedule.after[index]) run(event);
}

void DataAxis::run(const UnitEvent& event) {
  const base::Span span(name_of(event.kind), base::TracePart::units, {"unit", event.unit.value()});
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
