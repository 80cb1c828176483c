// What LibTorch asks an accelerator beyond guards: its generator, pinned memory, resizing.
#pragma once

namespace dtrain::testing::fake {

/// at::manual_seed also seeds the device's generator, which is the CPU's kind.
void register_hooks();

}  // namespace dtrain::testing::fake
