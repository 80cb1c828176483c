// Runs the plugin's CUDA kernels on the CPU: one CPU thread per GPU thread, thread blocks one after
// another.
#pragma once

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

namespace dtrain::testing {

struct GpuIndex {
  unsigned x = 0;
};
inline thread_local GpuIndex own_thread;
inline thread_local GpuIndex own_block;
inline GpuIndex number_of_blocks;
inline std::unique_ptr<std::barrier<>> threads_meet;

/// Runs kernel<<<blocks, threads>>>(arguments...) and waits.
template <typename Kernel, typename... Arguments>
void start_on_threads(unsigned blocks, unsigned threads, Kernel kernel, Arguments... arguments) {
  number_of_blocks.x = blocks;
  for (unsigned block = 0; block < blocks; ++block) {
    threads_meet = std::make_unique<std::barrier<>>(threads);
    std::vector<std::jthread> running;
    for (unsigned thread = 0; thread < threads; ++thread) {
      running.emplace_back([=] {
        own_block.x = block;
        own_thread.x = thread;
        kernel(arguments...);
        threads_meet->arrive_and_drop();
      });
    }
  }
}

}  // namespace dtrain::testing

// NOLINTBEGIN: the names are CUDA's.
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)
#define __syncthreads() dtrain::testing::threads_meet->arrive_and_wait()
#define __syncwarp() __syncthreads()
#define threadIdx dtrain::testing::own_thread
#define blockIdx dtrain::testing::own_block
#define gridDim dtrain::testing::number_of_blocks
// NOLINTEND

#include "cuda/kernels.h"
