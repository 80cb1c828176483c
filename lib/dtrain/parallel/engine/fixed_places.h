// Memory that comes and goes at the same places in every step.
#pragma once

#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// Gives memory of `allocate`, and keeps what is given back for the next one of the same size: the
/// first that is free. So equal orders of taking and giving back lead to equal addresses.
///
/// Threads: one, whose stream orders what was done with memory before what is done next.
[[nodiscard]] param::ArenaAllocator with_fixed_places(param::ArenaAllocator allocate);

}  // namespace dtrain::parallel
