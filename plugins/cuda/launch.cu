#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "cuda/bodies.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/tree_reduce_body.h"

namespace dtrain::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 4096;  // several waves of any GPU; a thread takes several

template <typename Body>
__device__ auto prepared(const Body& body) {
  if constexpr (requires { body.prepared(); }) {
    return body.prepared();
  } else {
    return body;
  }
}

template <typename Body>
__global__ void __launch_bounds__(kThreads) run_each(std::int64_t count, Body body) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (first >= count) return;
  const auto ready = prepared(body);
  for (std::int64_t i = first; i < count; i += std::int64_t{gridDim.x} * kThreads) ready(i);
}

constexpr int kMaxCells = 64;  // of a block of 4096 values
constexpr int kLanes = static_cast<int>(optim::kNormLanes);

// A thread for each lane of each cell of a block; then one for each cell, and one for the block.
template <typename T>
__global__ void __launch_bounds__(kMaxCells* kLanes)
    run_norm_sums(const T* values, const optim::NormBlock* table, double* slots) {
  __shared__ double lanes[kMaxCells][kLanes];
  __shared__ double cells[kMaxCells];
  const optim::NormBlock block = table[blockIdx.x];
  const int cell = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto num_cells = static_cast<int>(block.num_cells());
  if (cell < num_cells) {
    lanes[cell][lane] =
        optim::lane_sum(values + block.first + cell * optim::kNormCell, block.count_of(cell), lane);
  }
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < num_cells) {
    cells[thread] = optim::sum_of_lanes(lanes[thread]);
    if (block.is_cell_wise != 0) slots[block.slot + thread] += cells[thread];
  }
  __syncthreads();
  if (thread == 0 && block.is_cell_wise == 0) {
    double sum = slots[block.slot];
    for (int i = 0; i < num_cells; ++i) sum += cells[i];
    slots[block.slot] = sum;
  }
}

// Adds value(0), ..., value(count - 1) to `sum` in that order: the block's threads fetch, one adds.
template <typename Value>
__device__ double add_in_order(double sum, std::int64_t count, Value value) {
  __shared__ double fetched[kThreads];
  for (std::int64_t begin = 0; begin < count; begin += kThreads) {
    const std::int64_t own = begin + threadIdx.x;
    if (own < count) fetched[threadIdx.x] = value(own);
    __syncthreads();
    const std::int64_t here = count - begin < kThreads ? count - begin : kThreads;
    if (threadIdx.x == 0) {
      for (std::int64_t i = 0; i < here; ++i) sum += fetched[i];
    }
    __syncthreads();
  }
  return sum;
}

// A block of threads for each parameter.
__global__ void __launch_bounds__(kThreads)
    run_norm_squares(const double* slots, const SlotRange* blocks, const std::int64_t* ends,
                     double* squares) {
  const std::int64_t begin = blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1];
  const double sum = add_in_order(0.0, ends[blockIdx.x] - begin, [&](std::int64_t i) {
    const SlotRange range = blocks[begin + i];
    double of_block = 0;
    for (std::int64_t slot = 0; slot < range.count; ++slot) of_block += slots[range.first + slot];
    return of_block;
  });
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// A block of threads for each row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    run_ordered_sum(const T* values, std::int64_t length, double* sums) {
  const T* row = values + blockIdx.x * length;
  const double sum =
      add_in_order(0.0, length, [&](std::int64_t i) { return static_cast<double>(row[i]); });
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

template <typename Body>
void launch(std::int64_t count, const Body& body, cudaStream_t stream) {
  if (count == 0) return;
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  run_each<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0,
             stream>>>(count, body);
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

#define DTRAIN_BODY(...) template void launch(std::int64_t, const __VA_ARGS__&, cudaStream_t)
#define DTRAIN_FLOATING(T)     \
  DTRAIN_BODY(DropoutBody<T>); \
  template void launch_ordered_sum(const T*, std::int64_t, std::int64_t, double*, cudaStream_t)
#define DTRAIN_MASTER(T)                                                                   \
  DTRAIN_BODY(AdamWBody<T>);                                                               \
  DTRAIN_BODY(SgdBody<T>);                                                                 \
  DTRAIN_BODY(ScaleBody<T>);                                                               \
  template void launch_norm_sums(const T*, const optim::NormBlock*, std::int64_t, double*, \
                                 cudaStream_t)
#define DTRAIN_REDUCED(T)                \
  DTRAIN_BODY(TreeReduceBody<T, false>); \
  DTRAIN_BODY(TreeReduceBody<T, true>)

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
