// All ranks of a job.
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

/// What ranks call in a group: any operation, or send, recv and barrier alone.
enum class GroupCalls { all, messages };

/// All ranks of a job, and the maker of groups. The groups are the data plane: they move the
/// tensors of a step. control() is the control plane: it exchanges facts that the host knows.
///
/// Throws:  construction (create_world): Error{timeout} or Error{comm} naming who is missing.
/// Threads: one caller.
class World {
 public:
  virtual ~World() = default;

  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Where tensors that ranks communicate live; CPU tensors may always go through control().
  [[nodiscard]] virtual c10::Device device() const = 0;
  /// Options of a new tensor of this dtype on device().
  [[nodiscard]] at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(device()).dtype(dtype);
  }
  /// "local", "shm", "gloo", "hier" or "mpi".
  [[nodiscard]] virtual std::string_view backend() const = 0;

  /// Memory for an arena, where the backend communicates fast from: `bytes` bytes, zeroed, 64-byte
  /// aligned, as a tensor (bytes) uint8. Given back when the last view of it ends.
  ///
  /// Throws:  Error{memory}. Threads: any.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t bytes) = 0;

  /// The group of these world ranks, in this order; null where this rank is not among them.
  ///
  /// Collective: every rank of the world calls it with the same arguments.
  [[nodiscard]] virtual std::shared_ptr<ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                            std::string_view name) = 0;

  /// The group of the line that this rank is in; null where it is in none. No rank is in two of the
  /// lines, which are as `ranks` of split(). A backend may save what only collective calls need
  /// where there are none.
  ///
  /// Collective: as split().
  [[nodiscard]] virtual std::shared_ptr<ProcessGroup> split_lines(
      std::span<const std::vector<std::int64_t>> lines, std::string_view name, GroupCalls) {
    std::shared_ptr<ProcessGroup> own;
    for (const auto& line : lines) {
      if (auto group = split(line, name)) own = std::move(group);
    }
    return own;
  }

  /// Declares that this rank makes no more groups, so that the store through which the ranks met
  /// can be closed. split() fails afterwards.
  virtual void end_meeting() {}  // ranks that are threads have met nowhere

  /// The group of all ranks for CPU tensors, made with the world and given away by split() to
  /// nobody: its calls never wait for a device, nor for a call of another group. Lives as long as
  /// the world. A job's traffic counters leave it out.
  [[nodiscard]] virtual ProcessGroup& control() = 0;
};

/// 0, 1, ... size - 1: the ranks of a group of all.
[[nodiscard]] inline std::vector<std::int64_t> ranks_below(std::int64_t size) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return ranks;
}

/// The name of every control().
inline constexpr std::string_view kControlName = "control";

}  // namespace dtrain::comm
