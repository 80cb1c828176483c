// Names the memory that the host must not touch, when it does.
#pragma once

namespace dtrain::testing::fake {

/// From now on a SIGSEGV in the address windows writes a line to standard error before it ends the
/// process: who accessed which byte of which allocation. It must be set again after another
/// handler.
void report_stray_accesses();

}  // namespace dtrain::testing::fake
