// Reducers of gradients where ranks hold shards: units are summed over the ranks beside the
// backward pass.
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

/// Sums units in the order in which they are handed over: each over the shards, so that every rank
/// gets the sum of its own shard, and then, where it is the last of a step, over the replicas,
/// where compression acts.
///
/// Collective: begin_sum, over the shards; finish, over shards and replicas; in the same order on
///             all ranks.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class ShardedReducer : public GradientReducer {
 public:
  void begin_step(const StepTerms& terms) override { replicas_->begin_step(terms); }
  void finish() override;
  void end_step(bool has_updated) override { replicas_->end_step(has_updated); }
  [[nodiscard]] Carried carried() const override { return replicas_->carried(); }
  [[nodiscard]] std::optional<CompressionReport> compression() const override {
    return replicas_->report();
  }

  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup);

 protected:
  /// Units travel over the shards as the setup's codec encodes them; setup.layout, the groups and
  /// what `allocate` refers to must outlive this.
  ShardedReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                 const param::ArenaAllocator& allocate);

  /// Returns what sums of these many elements at once take on top.
  [[nodiscard]] static MemoryPlan memory_of_sums(const ReducerSetup& setup, std::int64_t elements);

  /// input (the unit) -> output (this rank's shard of it, which may be that part of `input`).
  /// `arrived` is called once the output is there, in some later call. Takes note of earlier sums
  /// that have arrived; never blocks.
  void begin_sum(const at::Tensor& input, const at::Tensor& output, std::function<void()> arrived);
  /// Waits until at most `count` sums over shards are under way.
  void wait_until(std::size_t count);

  const param::ArenaLayout& layout_;
  param::ShardId shard_;
  /// Sums this rank's shards over the replicas, each once it holds the step's sum over the shards.
  std::unique_ptr<RankSum> replicas_;

 private:
  struct Sum {
    at::Tensor input;   // encoded
    at::Tensor result;  // likewise; the output itself where nothing is copied
    at::Tensor output;
    comm::Work work;
    std::function<void()> arrived;
  };

  void take_first();

  const mesh::MeshGroups& groups_;
  std::shared_ptr<const GradientCodec> codec_;
  std::deque<Sum> under_way_;
};

/// Gradients kept in full until a step ends, then cut into shards: ZeRO-1, and local accumulation.
/// Adds microbatches in full arenas; in the last one each unit's sum goes to its shards, in the
/// place where it lies.
class WholeReducer final : public ShardedReducer {
 public:
  WholeReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
               const param::ArenaAllocator& allocate);

  void begin_microbatch(data::MicrobatchId id) override { store_.begin_microbatch(id); }
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override {
    return store_.gradient_of(id);
  }
  void settle(param::ParameterId id) override { store_.settle(id); }
  void reduce(param::UnitId unit) override;
  void end_microbatch() override { store_.end_microbatch(); }
  [[nodiscard]] const param::Arena& gradients() const override { return store_.gradients(); }

  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);

 private:
  GradientStore store_;
};

/// Gradients kept as shards: a unit exists in full only from its first gradient to its reduction.
/// Every microbatch's units are summed over the shards, whose sums are then added over microbatches
/// in tree order. With tied units reduced at every use the sums are added as they come.
///
/// Memory: 1 + log2(microbatches) shards, and at most two units in full: one that receives
///         gradients and one that travels.
class ShardReducer final : public ShardedReducer {
 public:
  /// setup.schedule: says how often each unit is reduced in a step.
  ShardReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
               const param::ArenaAllocator& allocate);

  void begin_microbatch(data::MicrobatchId id) override;
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override;
  void settle(param::ParameterId) override {}  // a unit's memory is zero where nothing was added
  void reduce(param::UnitId unit) override;
  void end_microbatch() override {}
  void finish() override;
  [[nodiscard]] const param::Arena& gradients() const override { return sums_.front(); }

  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup);

 private:
  struct Unit {
    std::unique_ptr<UnitBuffer> buffer;  // taken: this microbatch's gradient in full
    std::vector<bool> has_gradient;      // by parameter of the unit
    std::int64_t num_sums = 0;           // in a step
    std::int64_t begun = 0;              // of those
    std::int64_t arrived = 0;
    std::size_t depth = 0;  // partial sums on the stack
  };

  /// The unit, with memory that receives gradients.
  [[nodiscard]] Unit& receiving(param::UnitId id);
  void arrive(param::UnitId id);
  [[nodiscard]] at::Tensor shard_of(param::UnitId unit, std::size_t level) const;

  ReducerOptions options_;
  base::IndexedVector<param::UnitId, Unit> units_;
  std::vector<param::Arena> sums_;  // the stack of partial sums; the step's sum ends in the first
};

}  // namespace dtrain::parallel
