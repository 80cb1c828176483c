// Gradients kept as shards: a unit exists in full only from its first gradient to its reduction.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/parallel/data/unit_buffer.h"
#include "dtrain/parallel/data/unit_schedule.h"
#include "dtrain/parallel/data/whole_reducer.h"

namespace dtrain::parallel {

/// Every microbatch's units are summed over the shards, whose sums are then added over microbatches
/// in tree order. With tied units reduced at every use the sums are added as they come.
///
/// Memory: 1 + log2(microbatches) shards, and at most two units in full: one that receives
///         gradients and one that travels.
class ShardReducer final : public GradientReducer {
 public:
  /// setup.schedule: says how often each unit is reduced in a step.
  ShardReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
               const param::ArenaAllocator& allocate);

  void begin_step(const StepTerms& terms) override { reductions_.replicas().begin_step(terms); }
  void begin_microbatch(data::MicrobatchId id) override;
  [[nodiscard]] param::GradientPlace gradient_of(param::ParameterId id) override;
  void settle(param::ParameterId) override {}  // a unit's memory is zero where nothing was added
  void reduce(param::UnitId unit) override;
  void end_microbatch() override {}
  void finish() override;
  void end_step(bool has_updated) override { reductions_.replicas().end_step(has_updated); }
  [[nodiscard]] const param::Arena& gradients() const override { return sums_.front(); }
  [[nodiscard]] Carried carried() const override { return reductions_.replicas().carried(); }
  [[nodiscard]] std::optional<CompressionReport> compression() const override {
    return reductions_.replicas().report();
  }

  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);
  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup) {
    return UnitReductions::traffic(setup);
  }

 private:
  struct Unit {
    std::unique_ptr<UnitBuffer> buffer;  // taken: this microbatch's gradient in full
    std::vector<bool> has_gradient;      // by parameter of the unit
    std::int64_t num_sums = 0;           // in a step
    std::int64_t begun = 0;              // of those
    std::int64_t arrived = 0;
    std::size_t depth = 0;  // partial sums on the stack
  };

  void take(Unit& unit);
  void arrive(param::UnitId id);
  [[nodiscard]] at::Tensor shard_of(param::UnitId unit, std::size_t level) const;

  const param::ArenaLayout& layout_;
  param::ShardId shard_;
  ReducerOptions options_;
  base::IndexedVector<param::UnitId, Unit> units_;
  std::vector<param::Arena> sums_;  // the stack of partial sums; the step's sum ends in the first
  UnitReductions reductions_;
};

}  // namespace dtrain::parallel
