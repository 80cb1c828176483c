#include "dtrain/parallel/data/data_traffic.h"

namespace dtrain::parallel {

DataTraffic data_traffic(const param::ArenaLayout& layout, const UnitSchedule& schedule,
                         const DataAxisOptions& options) {
  DataTraffic traffic;
  if (layout.num_shards() == 1) return traffic;
  const bool keeps_units = options.plan.schedule.reshard == Reshard::never;
  for (std::int64_t unit = 0; unit < layout.num_units(); ++unit) {
    const std::int64_t others =
        layout.unit_range(unit).size() / layout.num_shards() * (layout.num_shards() - 1);
    // Units that are always there are gathered once, after the update.
    const std::int64_t gathers = keeps_units ? 1 : schedule.count(UnitEventKind::gather, unit);
    const std::int64_t reductions = schedule.count(UnitEventKind::reduce, unit);
    traffic.gathers += gathers;
    traffic.gather_bytes +=
        gathers * others * static_cast<std::int64_t>(c10::elementSize(options.precision.compute));
    traffic.reductions += reductions;
    traffic.reduction_bytes +=
        reductions * others * static_cast<std::int64_t>(c10::elementSize(options.precision.reduce));
  }
  traffic.max_gathered = keeps_units ? layout.num_units() : schedule.max_gathered;
  return traffic;
}

}  // namespace dtrain::parallel
