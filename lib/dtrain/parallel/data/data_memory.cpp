#include "dtrain/parallel/data/data_memory.h"

#include <algorithm>

#include "dtrain/parallel/data/gradient_store.h"
#include "dtrain/parallel/data/shard_reducer.h"

namespace dtrain::parallel {
namespace {

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// Elements of the units that are there at once.
std::int64_t most_gathered(const param::ArenaLayout& layout, const UnitSchedule& schedule) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  schedule.for_each([&](const UnitEvent& event) {
    const std::int64_t size = layout.unit_range(event.unit).size();
    if (event.kind == UnitEventKind::gather) now += size;
    if (event.kind == UnitEventKind::free) now -= size;
    most = std::max(most, now);
  });
  return most;
}

// Elements of two units reduced one after the other: one travels while the next one receives.
std::int64_t most_reduced(const param::ArenaLayout& layout, const UnitSchedule& schedule) {
  std::int64_t last_unit = -1;
  std::int64_t most = 0;
  schedule.for_each([&](const UnitEvent& event) {
    if (event.kind != UnitEventKind::reduce) return;
    std::int64_t size = layout.unit_range(event.unit).size();
    if (last_unit >= 0 && last_unit != event.unit) size += layout.unit_range(last_unit).size();
    last_unit = event.unit;
    most = std::max(most, size);
  });
  return most;
}

}  // namespace

DataMemory data_memory(const param::ArenaLayout& layout, const UnitSchedule& schedule,
                       const DataAxisOptions& options, std::int64_t moments) {
  const std::int64_t whole = layout.num_elements();
  const std::int64_t shard = whole / layout.num_shards();
  const std::int64_t master = size_of(options.master_dtype);
  const std::int64_t compute = size_of(options.compute_dtype);
  const bool keeps_units = options.plan.schedule.reshard == Reshard::never;
  const bool converts = options.master_dtype != options.compute_dtype;

  DataMemory memory;
  memory.optimizer = shard * master * moments;
  memory.state = shard * master * (1 + moments);
  if (!keeps_units) {
    memory.parameters = shard * master;
    memory.gathered = most_gathered(layout, schedule) * compute;
  } else {
    memory.parameters = converts ? shard * master + whole * compute : whole * master;
  }
  if (options.plan.keeps_gradient_shards()) {
    const ReducerOptions reducer{.num_microbatches = options.num_microbatches,
                                 .reduction = options.reduction};
    memory.gradients = shard * master * ShardReducer::num_levels(schedule, reducer);
    memory.unit_gradients = most_reduced(layout, schedule) * master;
  } else {
    memory.gradients =
        whole * master * GradientStore::arenas_for(options.num_microbatches, options.reduction);
  }
  return memory;
}

}  // namespace dtrain::parallel
