// Sums of units over the ranks, under way beside the backward pass.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "dtrain/mesh/mesh_groups.h"

namespace dtrain::parallel {

/// Reduces units in the order in which they are handed over: each over the shards, so that every
/// rank gets the sum of its own shard, and then, where it is the last of a step, over the replicas.
///
/// Collective: begin, over the shards; finish, over shards and replicas; in the same order on all
///             ranks.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class UnitReductions {
 public:
  /// Sums travel in `dtype`; the groups must outlive this.
  UnitReductions(const mesh::MeshGroups& groups, at::ScalarType dtype)
      : groups_(groups), dtype_(dtype) {}

  /// input (the unit) -> output (this rank's shard of it, which may be that part of `input`).
  /// `arrived` is called once the output is there, in some later call.
  void begin(const at::Tensor& input, const at::Tensor& output, std::function<void()> arrived);
  /// The shard holds the step's sum over this copy's ranks: starts to sum it over the replicas.
  void begin_replicas(const at::Tensor& shard);
  /// Waits until at most `count` sums over shards are under way.
  void wait_until(std::size_t count);
  /// Takes note of what has arrived; never blocks.
  void poll();
  /// Returns when everything has arrived.
  void finish();

 private:
  struct Sum {
    at::Tensor input;   // in the dtype of travel
    at::Tensor result;  // likewise; the output itself where nothing is converted
    at::Tensor output;
    comm::Work work;
    std::function<void()> arrived;
  };

  void take_first();

  const mesh::MeshGroups& groups_;
  at::ScalarType dtype_;
  std::deque<Sum> under_way_;
  std::vector<comm::Work> replicas_;
};

}  // namespace dtrain::parallel
