#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "cuda/bodies.h"
#include "cuda/check.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/tree_reduce_body.h"

namespace dtrain::cuda {

bool has_kernels() {
  cudaFuncAttributes found{};
  const cudaError_t status = cudaFuncGetAttributes(&found, run_norm_squares);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();  // clears it, so that no later call reports it
    return false;
  }
  check(status, "looking for the kernels");
  return true;
}

namespace {

// The number of thread blocks for `threads` threads.
unsigned blocks_for(std::int64_t threads) {
  const std::int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

template <typename Body>
void launch(const Body& body, cudaStream_t stream) {
  const std::int64_t size = body.size();
  if (size == 0) return;
  run_each<<<blocks_for(size), kThreads, 0, stream>>>(size, body);
  check(cudaGetLastError(), "starting a kernel");
}

template <typename scalar_t>
void launch_dropout(const DropoutBody<scalar_t>& body, cudaStream_t stream) {
  if (body.size() == 0) return;
  run_dropout<<<blocks_for(body.size() * body.kCounters), kThreads, 0, stream>>>(body);
  check(cudaGetLastError(), "starting a kernel");
}

template <typename T>
void launch_mirror_lower(const T* in, T* out, std::int64_t batch, std::int64_t length,
                         cudaStream_t stream) {
  const std::int64_t tiles = (length + kMirrorTile - 1) / kMirrorTile;
  const std::int64_t blocks = batch * tiles * tiles;
  if (blocks == 0) return;
  run_mirror_lower<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(in, out, length);
  check(cudaGetLastError(), "starting a kernel");
}

template <typename T>
void launch_norm_sums(const T* values, const optim::NormBlock* table, std::int64_t blocks,
                      double* sums, cudaStream_t stream) {
  if (blocks == 0) return;
  run_norm_sums<<<static_cast<unsigned>(blocks), kMaxCells * kLanes, 0, stream>>>(values, table,
                                                                                  sums);
  check(cudaGetLastError(), "starting a kernel");
}

void launch_norm_squares(const double* sums, const SlotRange* blocks, const std::int64_t* ends,
                         std::int64_t parameters, double* squares, cudaStream_t stream) {
  if (parameters == 0) return;
  run_norm_squares<<<static_cast<unsigned>(parameters), kThreads, 0, stream>>>(sums, blocks, ends,
                                                                               squares);
  check(cudaGetLastError(), "starting a kernel");
}

template <typename T>
void launch_ordered_sum(const T* values, std::int64_t rows, std::int64_t length, double* sums,
                        cudaStream_t stream) {
  if (rows == 0) return;
  run_ordered_sum<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(values, length, sums);
  check(cudaGetLastError(), "starting a kernel");
}

#define DTRAIN_BODY(...) template void launch(const __VA_ARGS__&, cudaStream_t)
#define DTRAIN_FLOATING(T)                                                                   \
  template void launch_dropout(const DropoutBody<T>&, cudaStream_t);                         \
  template void launch_mirror_lower(const T*, T*, std::int64_t, std::int64_t, cudaStream_t); \
  template void launch_ordered_sum(const T*, std::int64_t, std::int64_t, double*, cudaStream_t)
#define DTRAIN_MASTER(T)                                                                   \
  DTRAIN_BODY(AdamWBody<T>);                                                               \
  DTRAIN_BODY(SgdBody<T>);                                                                 \
  DTRAIN_BODY(ScaleBody<T>);                                                               \
  template void launch_norm_sums(const T*, const optim::NormBlock*, std::int64_t, double*, \
                                 cudaStream_t)
#define DTRAIN_REDUCED(T)                            \
  DTRAIN_BODY(TreeReduceBody<T, false, kFewLevels>); \
  DTRAIN_BODY(TreeReduceBody<T, true, kFewLevels>);  \
  DTRAIN_BODY(TreeReduceBody<T, false, kMaxLevels>); \
  DTRAIN_BODY(TreeReduceBody<T, true, kMaxLevels>)

DTRAIN_FLOATING(float);
DTRAIN_FLOATING(double);
DTRAIN_FLOATING(c10::BFloat16);
DTRAIN_FLOATING(c10::Half);
DTRAIN_MASTER(float);
DTRAIN_MASTER(double);
DTRAIN_BODY(RopeBody<c10::BFloat16>);
DTRAIN_BODY(RopeBody<c10::Half>);
DTRAIN_REDUCED(float);
DTRAIN_REDUCED(double);
DTRAIN_REDUCED(c10::BFloat16);
DTRAIN_REDUCED(c10::Half);
DTRAIN_REDUCED(std::int64_t);
DTRAIN_REDUCED(std::uint8_t);

}  // namespace dtrain::cuda
