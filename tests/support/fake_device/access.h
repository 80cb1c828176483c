// The bytes of a tensor that a kernel uses, and pinned host memory, which is out of bounds while a copy uses it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <optional>
#include <string>
#include <vector>

#include "support/fake_device/memory.h"

namespace dtrain::testing::fake {

/// What a kernel does to one tensor. Without a block: nothing.
struct Access {
  BlockPtr block;
  std::vector<Range> ranges;
  bool is_write = false;
};

/// The use of a tensor in device memory or pinned memory.
///
/// Throws:  c10::Error if its memory is foreign or has been freed.
[[nodiscard]] Access access_of(const at::Tensor& tensor, bool is_write);

/// Adds a kernel's accesses to their blocks' histories. Describes the first race, if there is one:
/// a use of the same bytes, one of them a write, by a kernel that is not in `known`.
///
/// Threads: any.
[[nodiscard]] std::optional<std::string> find_race(const std::vector<Access>& accesses,
                                                   const Epoch& kernel, const Clock& known);

/// "aten::add_ (kernel 7 of stream 3) reads".
[[nodiscard]] std::string describe(const Epoch& kernel, bool is_write);

/// Memory of the host that kernels may copy from and to.
///
/// Threads: any.
c10::Allocator& pinned_allocator();

/// Until release_copies() knows that `copy` has run, the host may only read the accessed pinned
/// memory, and not even that if the copy writes it. Pages that the access covers in part stay open.
///
/// Threads: any.
void guard_copy(const Access& access, const Epoch& copy);

/// The host knows that the kernels of `known` have run.
///
/// Threads: any.
void release_copies(const Clock& known);

}  // namespace dtrain::testing::fake
