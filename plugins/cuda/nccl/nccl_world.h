// A world of ranks on NVIDIA GPUs that communicate through NCCL.
#pragma once

#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::cuda {

/// Implements device::Plugin::make_world for NVIDIA GPUs. With options.shares_devices, NCCL treats
/// a GPU that several ranks share as several GPUs.
///
/// Throws:  Error{comm} and Error{timeout} as comm::create_world.
[[nodiscard]] std::shared_ptr<comm::World> make_nccl_world(std::shared_ptr<comm::World> host,
                                                           c10::Device device,
                                                           const comm::GroupOptions& options);

}  // namespace dtrain::cuda
