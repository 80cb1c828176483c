// CUDA graphs.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "dtrain/device/graph.h"

namespace dtrain::cuda {

/// Records on a stream of LibTorch's pool, since CUDA records nothing on the default stream; other
/// threads may go on calling CUDA meanwhile. Graphs of one recorder share a memory pool.
[[nodiscard]] std::unique_ptr<device::GraphRecorder> make_graph_recorder(c10::Device device);

}  // namespace dtrain::cuda
