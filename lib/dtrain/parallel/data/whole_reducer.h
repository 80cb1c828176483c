// Gradients kept in full until a step ends, then cut into shards: ZeRO-1, and local accumulation.
#pragma once

#include "dtrain/parallel/data/gradient_reducer.h"
#include "dtrain/parallel/data/gradient_store.h"
#include "dtrain/parallel/data/unit_reductions.h"

namespace dtrain::parallel {

/// Adds microbatches in full arenas; in the last one each unit's sum goes to its shards, in the
/// place where it lies.
class WholeReducer final : public GradientReducer {
 public:
  WholeReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
               const param::ArenaAllocator& allocate);

  void begin_step(const StepTerms& terms) override { reductions_.replicas().begin_step(terms); }
  void begin_microbatch(data::MicrobatchId id) override { store_.begin_microbatch(id); }
  [[nodiscard]] param::GradientPlace gradient_of(param::ParameterId id) override {
    return store_.gradient_of(id);
  }
  void settle(param::ParameterId id) override { store_.settle(id); }
  void reduce(param::UnitId unit) override;
  void end_microbatch() override { store_.end_microbatch(); }
  void finish() override { reductions_.finish(); }
  void end_step(bool has_updated) override { reductions_.replicas().end_step(has_updated); }
  [[nodiscard]] const param::Arena& gradients() const override { return store_.gradients(); }
  [[nodiscard]] Carried carried() const override { return reductions_.replicas().carried(); }
  [[nodiscard]] std::optional<CompressionReport> compression() const override {
    return reductions_.replicas().report();
  }

  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);
  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup) {
    return UnitReductions::traffic(setup);
  }

 private:
  const param::ArenaLayout& layout_;
  param::ShardId shard_;
  GradientStore store_;
  UnitReductions reductions_;
};

}  // namespace dtrain::parallel
