// The parameters of a rank: masters, which the optimizer updates, and the copies that blocks read.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/comm/process_group.h"
#include "dtrain/parallel/data/internal/unit_buffer.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"
#include "dtrain/parallel/memory.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/offload_memory.h"

namespace dtrain::parallel {

/// Masters are whole where nothing is sharded, or where every rank keeps all parameters in the
/// masters' own dtype: then the copies are the masters. Else a rank's masters are its shards, and
/// the copies are units that are gathered from all shards.
///
/// Collective: begin_gather and all refreshes, over the shards, in the same order.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class ParameterStore {
 public:
  struct Options {
    at::ScalarType master_dtype = at::kFloat;
    at::ScalarType compute_dtype = at::kFloat;
    bool keeps_units = true;  ///< units stay gathered between steps; else begin_gather and free
    /// Where masters are, which needs keeps_units off; null: where blocks compute.
    param::OffloadMemory* offload = nullptr;
  };

  /// shards: the ranks that share one copy of the state. `layout`, `shards` and what `allocate`
  /// refers to must outlive this.
  ParameterStore(const param::ArenaLayout& layout, comm::ProcessGroup& shards,
                 const param::ArenaAllocator& allocate, const Options& options);

  /// The memory that a store holds, and its peak while a step gathers and frees units.
  [[nodiscard]] static MemoryPlan memory(const param::ArenaLayout& layout,
                                         const UnitSchedule& schedule, const Options& options);

  /// Only the owner of an element keeps its master up to date.
  [[nodiscard]] const param::Arena& masters() const { return masters_; }
  /// The copies that blocks compute with, in the compute dtype; valid while their unit is gathered.
  [[nodiscard]] const param::ParameterViews& views() const { return views_; }
  [[nodiscard]] at::Tensor unit_values(param::UnitId unit) const;

  /// Starts to gather a unit.
  void begin_gather(param::UnitId unit);
  /// Returns when the unit that is being gathered, if it is, is there.
  void wait(param::UnitId unit);
  void free(param::UnitId unit);
  [[nodiscard]] bool is_gathered(param::UnitId unit) const;

  /// The masters have changed: starts to bring units that are kept up to date.
  void refresh();
  /// An update has changed the masters: the same for trained units.
  void refresh_trained();
  /// The same for those of which this rank's part lies below element `end`, while the others'
  /// masters still change; then refresh_trained() starts the rest.
  void refresh_trained_to(std::int64_t end);
  void wait_for_all();

 private:
  struct Unit {
    std::unique_ptr<UnitBuffer> buffer;  // null: the masters serve
    param::Fetched part;                 // this rank's, until it is copied or has travelled
    at::Tensor sent;                     // the same in the compute dtype, until it has travelled
    comm::Work gathered;
  };

  [[nodiscard]] bool keeps_copies() const;
  void refresh(param::UnitId id);
  void gather_into(Unit& unit, param::UnitId id, const at::Tensor& target);
  void release_part(Unit& unit, param::UnitId id);
  [[nodiscard]] at::Tensor own_part(param::UnitId id) const;

  const param::ArenaLayout& layout_;
  comm::ProcessGroup& shards_;
  Options options_;
  param::Arena masters_;
  base::IndexedVector<param::UnitId, Unit> units_;
  param::UnitId next_refreshed_{0};
  param::ParameterViews views_;
};

}  // namespace dtrain::parallel
