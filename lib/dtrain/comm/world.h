// All ranks of a job.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// All ranks of a job, and the maker of groups.
///
/// Throws:  construction (create_world, LocalWorld): Error{timeout} or Error{comm} naming who is
/// missing. Threads: one caller.
class World {
 public:
  virtual ~World() = default;

  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual c10::Device device() const = 0;
  /// "local", "shm" or "gloo".
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
};

}  // namespace dtrain::comm
