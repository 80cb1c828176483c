// The interface of a job's world: all its ranks, their groups and their memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// The operations that ranks call in a group: all, or only send, recv and barrier.
enum class GroupCalls { all, messages };

/// All ranks of a job; creates their groups. The groups are the data plane: they move the tensors
/// of a step. control() is the control plane: it exchanges host data.
///
/// Throws:  construction (create_world): Error{timeout} or Error{comm} naming the missing ranks.
/// Threads: one caller.
class World {
 public:
  virtual ~World() = default;

  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// The device of communicated tensors; control() always takes CPU tensors.
  [[nodiscard]] virtual c10::Device device() const = 0;
  /// Options of a new tensor of this dtype on device().
  [[nodiscard]] at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(device()).dtype(dtype);
  }
  /// "local", "shm", "gloo", "hier" or "mpi".
  [[nodiscard]] virtual std::string_view backend() const = 0;

  /// Allocates memory from which the backend communicates fast: `bytes` bytes, zeroed, 64-byte
  /// aligned, as a tensor (bytes) uint8. Freed with its last view.
  ///
  /// Throws:  Error{memory}. Threads: any.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t bytes) = 0;

  /// Creates the group of these world ranks, in this order; null on ranks outside it.
  ///
  /// Collective: every rank of the world calls it with the same arguments.
  [[nodiscard]] virtual std::shared_ptr<ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                            std::string_view name) = 0;

  /// Creates several disjoint groups at once, each given as the `ranks` of split(); returns the one
  /// that contains this rank, or null. For GroupCalls::messages a backend may skip what only
  /// collectives need.
  ///
  /// Collective: as split().
  [[nodiscard]] virtual std::shared_ptr<ProcessGroup> split_subgroups(
      std::span<const std::vector<std::int64_t>> lines, std::string_view name, GroupCalls) {
    std::shared_ptr<ProcessGroup> own;
    for (const auto& line : lines) {
      if (auto group = split(line, name)) own = std::move(group);
    }
    return own;
  }

  /// Declares that this rank creates no more groups, so that the rendezvous store can be closed.
  /// split() fails afterwards.
  virtual void close_rendezvous() {}  // ranks that are threads have no store

  /// The group of all ranks for CPU tensors, created with the world and never returned by split().
  /// Its calls never wait for a device or for calls of another group. Lives as long as the world. A
  /// job's traffic counters exclude it.
  [[nodiscard]] virtual ProcessGroup& control() = 0;
};

/// The list 0, 1, ... size - 1: all ranks of a world.
[[nodiscard]] inline std::vector<std::int64_t> ranks_below(std::int64_t size) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return ranks;
}

/// The name of every control().
inline constexpr std::string_view kControlName = "control";

}  // namespace dtrain::comm
