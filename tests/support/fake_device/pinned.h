// Pinned host memory, out of bounds while a copy uses it.
#pragma once

#include <c10/core/Allocator.h>

#include "support/fake_device/access.h"

namespace dtrain::testing::fake {

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
