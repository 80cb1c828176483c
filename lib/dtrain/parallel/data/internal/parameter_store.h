// Stores a rank's parameters: master weights, which the optimizer updates, and the copies that
// blocks read.
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

/// Owns a rank's master weights ("masters") and gathers the units that blocks read. If every rank
/// keeps all parameters gathered in the masters' dtype, for example without sharding, the masters
/// are whole and blocks read them directly. Otherwise a rank's masters are its shards, and blocks
/// read units that are all-gathered from all shards.
///
/// Collective: begin_gather and the refresh functions, over the shards, in the same order.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class ParameterStore {
 public:
  struct Options {
    at::ScalarType master_dtype = at::kFloat;
    at::ScalarType compute_dtype = at::kFloat;
    bool keeps_units = true;  ///< units stay gathered; false: use begin_gather() and free()
    /// Holds the masters; requires keeps_units to be false. Null: they are in the compute device's
    /// memory.
    param::OffloadMemory* offload = nullptr;
  };

  /// shards: ranks that share one copy of the state. `layout`, `shards` and what `allocate` refers
  /// to must outlive this.
  ParameterStore(const param::ArenaLayout& layout, comm::ProcessGroup& shards,
                 const param::ArenaAllocator& allocate, const Options& options);

  /// Predicts a store's memory, including the peak of gathered units in a step.
  [[nodiscard]] static MemoryPlan memory(const param::ArenaLayout& layout,
                                         const UnitSchedule& schedule, const Options& options);

  /// The masters. An element's value is current only on the rank that owns it.
  [[nodiscard]] const param::Arena& masters() const { return masters_; }
  /// Parameters that blocks read, in the compute dtype; valid while their unit is gathered.
  [[nodiscard]] const param::ParameterViews& views() const { return views_; }
  [[nodiscard]] at::Tensor unit_values(param::UnitId unit) const;

  /// Starts to gather a unit.
  ///
  /// Async: wait() completes it.
  void begin_gather(param::UnitId unit);
  /// Blocks until the unit's gather, if one is in flight, has completed.
  void wait(param::UnitId unit);
  void free(param::UnitId unit);
  [[nodiscard]] bool is_gathered(param::UnitId unit) const;

  /// Starts to regather all kept units after the masters have changed.
  void refresh();
  /// As refresh(), for trained units only; call after an update.
  void refresh_trained();
  /// Starts regathering the trained units whose shard on this rank ends at or below element `end`,
  /// while later masters are still being updated; refresh_trained() starts the rest.
  void refresh_trained_to(std::int64_t end);
  void wait_for_all();

 private:
  struct Unit {
    std::unique_ptr<UnitBuffer> buffer;  // null: the masters are read
    param::Fetched part;                 // this rank's shard, until copied or sent
    at::Tensor sent;                     // the shard in the compute dtype, until sent
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
