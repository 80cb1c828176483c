// Gradient reducers with sharding: reduce-scatter units over the shards, overlapping the backward
// pass.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/data/internal/gradient_reducer.h"
#include "dtrain/parallel/data/internal/gradient_store.h"
#include "dtrain/parallel/data/internal/unit_buffer.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"

namespace dtrain::parallel {

/// Base class: reduce-scatters units over the shards in the order of the calls. When a shard holds
/// the step's sum, all-reduces it over the replicas, with optional compression.
///
/// Collective: begin_reduce_scatter, over the shards; finish, over shards and replicas; in the same
///             order on all ranks.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class ShardedReducer : public GradientReducer {
 public:
  void begin_step(const StepReduceOptions& options) override { replicas_->begin_step(options); }
  void finish() override;
  void end_step(bool has_updated) override { replicas_->end_step(has_updated); }
  [[nodiscard]] ErrorFeedbackState error_feedback() const override {
    return replicas_->error_feedback();
  }
  [[nodiscard]] std::optional<CompressionReport> compression() const override {
    return replicas_->report();
  }

  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup);

 protected:
  /// Units are encoded by the setup's codec. setup.layout, the groups and what `allocate` refers to
  /// must outlive this.
  ShardedReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                 const param::ArenaAllocator& allocate);

  /// Predicts the extra memory of reductions of this many elements at once.
  [[nodiscard]] static MemoryPlan reduction_memory(const ReducerSetup& setup,
                                                   std::int64_t elements);

  /// Starts a reduce-scatter of `input` (the unit) to `output` (this rank's shard of it, possibly a
  /// view of `input`).
  ///
  /// Async: a later call runs `on_complete` once the output is ready. Also completes earlier
  ///        reductions that have finished; never blocks.
  void begin_reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                            std::function<void()> on_complete);
  /// Blocks until at most `count` reduce-scatters are in flight.
  void limit_in_flight(std::size_t count);

  const param::ArenaLayout& layout_;
  param::ShardId shard_;
  /// All-reduces this rank's shards over the replicas, each once it holds the step's sum over the
  /// shards.
  std::unique_ptr<AllReducer> replicas_;

 private:
  struct InFlightReduction {
    at::Tensor input;   // encoded
    at::Tensor result;  // encoded; `output` itself if the codec does not copy
    at::Tensor output;
    comm::Work work;
    std::function<void()> on_complete;
  };

  void complete_first();

  const mesh::MeshGroups& groups_;
  std::shared_ptr<const GradientCodec> codec_;
  std::deque<InFlightReduction> in_flight_;
};

/// Accumulates full gradients and reduce-scatters each unit in place, in the last microbatch. Used
/// for ZeRO-1 and for local accumulation.
class FullGradientReducer final : public ShardedReducer {
 public:
  FullGradientReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                      const param::ArenaAllocator& allocate);

  void begin_microbatch(data::MicrobatchId id) override { store_.begin_microbatch(id); }
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override {
    return store_.gradient_of(id);
  }
  void mark_gradient_ready(param::ParameterId id) override { store_.mark_gradient_ready(id); }
  void reduce(param::UnitId unit) override;
  void end_microbatch() override { store_.end_microbatch(); }
  [[nodiscard]] const param::Arena& gradients() const override { return store_.gradients(); }

  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);

 private:
  GradientStore store_;
};

/// Keeps gradients as shards; a unit's full gradient exists only from its first gradient to its
/// reduction. Units are reduce-scattered in every microbatch, and shards are accumulated over
/// microbatches in tree order. Units with tied parameters that are reduced after every use are
/// accumulated in order of arrival.
///
/// Memory: 1 + log2(microbatches) shards, and at most two full units: one that receives gradients
///         and one being reduced.
class GradientShardReducer final : public ShardedReducer {
 public:
  /// setup.schedule gives the number of reductions of each unit in a step.
  GradientShardReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                       const param::ArenaAllocator& allocate);

  void begin_microbatch(data::MicrobatchId id) override;
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override;
  void mark_gradient_ready(param::ParameterId) override {}  // a unit's memory starts at zero
  void reduce(param::UnitId unit) override;
  void end_microbatch() override {}
  void finish() override;
  [[nodiscard]] const param::Arena& gradients() const override { return sums_.front(); }

  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);

 private:
  struct Unit {
    std::unique_ptr<UnitBuffer> buffer;  // while allocated, this microbatch's full gradient
    std::vector<bool> has_gradient;      // by parameter of the unit
    std::int64_t num_reductions = 0;     // per step
    std::int64_t started = 0;            // reductions started in this step
    std::int64_t completed = 0;
    std::size_t depth = 0;  // partial sums on the stack
  };

  /// Returns the unit, ready to receive gradients.
  [[nodiscard]] Unit& receiving_unit(param::UnitId id);
  void accumulate(param::UnitId id);
  [[nodiscard]] at::Tensor shard_of(param::UnitId unit, std::size_t level) const;

  ReducerOptions options_;
  base::IndexedVector<param::UnitId, Unit> units_;
  std::vector<param::Arena> sums_;  // stack of partial sums; the first ends as the step's sum
};

}  // namespace dtrain::parallel
