#include "cuda/stream.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "cuda/check.h"

namespace dtrain::cuda {

c10::Stream new_stream(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities of streams");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "making a stream");
  return c10::cuda::getStreamFromExternal(stream, device.index());
}

}  // namespace dtrain::cuda
