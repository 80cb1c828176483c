// Tracks which bytes of a tensor a kernel accesses, and protects pinned host memory during copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <optional>
#include <string>
#include <vector>

#include "support/fake_device/memory.h"

namespace dtrain::testing::fake {

/// A kernel's access to one tensor; no access if `block` is null.
struct Access {
  BlockPtr block;
  std::vector<Range> ranges;
  bool is_write = false;
};

/// Returns the access to a tensor in device memory or pinned memory.
///
/// Throws:  c10::Error if its memory is foreign or has been freed.
[[nodiscard]] Access access_of(const at::Tensor& tensor, bool is_write);

/// Adds a kernel's accesses to their blocks' histories and describes the first race, if any. A race
/// is an access to the same bytes by a kernel that is not in `known`, if one of the two is a write.
///
/// Threads: any.
[[nodiscard]] std::optional<std::string> find_race(const std::vector<Access>& accesses,
                                                   const Epoch& kernel, const Clock& known);

/// Returns "aten::add_ (kernel 7 of stream 3) reads".
[[nodiscard]] std::string describe(const Epoch& kernel, bool is_write);

/// The allocator of pinned host memory.
///
/// Threads: any.
c10::Allocator& pinned_allocator();

/// Protects the pinned memory of a copy from the host until release_copies() is called with a clock
/// that includes `copy`. The host may only read memory that the copy reads, and not access memory
/// that the copy writes. Partly covered pages stay accessible.
///
/// Threads: any.
void guard_copy(const Access& access, const Epoch& copy);

/// Lifts the protection for the copies in `known`. The host knows that these have run.
///
/// Threads: any.
void release_copies(const Clock& known);

}  // namespace dtrain::testing::fake
