// Sums of units over the ranks, under way beside the backward pass.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/data/gradient_reducer.h"

namespace dtrain::parallel {

/// Reduces units in the order in which they are handed over: each over the shards, so that every
/// rank gets the sum of its own shard, and then, where it is the last of a step, over the replicas,
/// where compression acts.
///
/// Collective: begin, over the shards; finish, over shards and replicas; in the same order on all
///             ranks.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class UnitReductions {
 public:
  /// Units travel over the shards as the setup's codec encodes them; setup.layout, the groups and
  /// what `allocate` refers to must outlive this.
  UnitReductions(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                 const param::ArenaAllocator& allocate);

  /// Returns what reductions of these many elements at once take on top.
  [[nodiscard]] static MemoryPlan memory(const ReducerSetup& setup, std::int64_t elements);
  /// Returns what a step's reductions send.
  [[nodiscard]] static ReducerTraffic traffic(const ReducerSetup& setup);

  /// input (the unit) -> output (this rank's shard of it, which may be that part of `input`).
  /// `arrived` is called once the output is there, in some later call.
  void begin(const at::Tensor& input, const at::Tensor& output, std::function<void()> arrived);
  /// The shard, elements `range` of the layout, holds the step's sum over this copy's ranks: starts
  /// to sum it over the replicas.
  void begin_replicas(param::ElementRange range, const at::Tensor& shard) {
    replicas_->begin(range, shard);
  }
  /// Waits until at most `count` sums over shards are under way.
  void wait_until(std::size_t count);
  /// Takes note of what has arrived; never blocks.
  void poll();
  /// Returns when everything has arrived.
  void finish();
  /// The sum over the replicas.
  [[nodiscard]] RankSum& replicas() { return *replicas_; }
  [[nodiscard]] const RankSum& replicas() const { return *replicas_; }

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
  std::unique_ptr<RankSum> replicas_;
};

}  // namespace dtrain::parallel
