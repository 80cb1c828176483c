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

std::int64_t largest_unit(const param::ArenaLayout& layout) {
  std::int64_t most = 0;
  for (std::int64_t unit = 0; unit < layout.num_units(); ++unit) {
    most = std::max(most, layout.unit_range(unit).size());
  }
  return most;
}

// Bytes of gradients that travel in another dtype, of `reduce` bytes each (0: they do not), with
// the shards that arrive.
std::int64_t converted(std::int64_t elements, const param::ArenaLayout& layout,
                       std::int64_t reduce) {
  const std::int64_t arriving = layout.num_shards() > 1 ? elements / layout.num_shards() : 0;
  return (elements + arriving) * reduce;
}

}  // namespace

DataMemory data_memory(const param::ArenaLayout& layout, const UnitSchedule& schedule,
                       const DataAxisOptions& options, std::int64_t moments) {
  const std::int64_t whole = layout.num_elements();
  const std::int64_t shard = whole / layout.num_shards();
  const std::int64_t master = size_of(options.precision.master);
  const std::int64_t compute = size_of(options.precision.compute);
  const bool keeps_units = options.plan.schedule.reshard == Reshard::never;
  const bool converts = options.precision.master != options.precision.compute;

  const std::int64_t reduce =
      options.precision.reduce == options.precision.master ? 0 : size_of(options.precision.reduce);

  DataMemory memory;
  memory.optimizer = shard * master * moments;
  memory.state = shard * master * (1 + moments);
  if (!keeps_units) {
    memory.parameters = shard * master;
    const std::int64_t gathered = most_gathered(layout, schedule) * compute;
    // What each rank sends of a unit is converted first.
    const bool sends_copies = converts && layout.num_shards() > 1;
    const std::int64_t sent = sends_copies ? largest_unit(layout) / layout.num_shards() : 0;
    memory.gathered = gathered + sent * compute;
  } else {
    memory.parameters = converts ? shard * master + whole * compute : whole * master;
  }
  if (options.plan.keeps_gradient_shards()) {
    const ReducerOptions reducer{.num_microbatches = options.num_microbatches,
                                 .reduction = options.reduction};
    memory.gradients = shard * master * ShardReducer::num_levels(schedule, reducer);
    memory.unit_gradients = most_reduced(layout, schedule) * master;
    memory.converted = converted(largest_unit(layout), layout, reduce);
  } else {
    memory.gradients =
        whole * master * GradientStore::arenas_for(options.num_microbatches, options.reduction);
    memory.converted = converted(whole, layout, reduce);
  }
  return memory;
}

}  // namespace dtrain::parallel
