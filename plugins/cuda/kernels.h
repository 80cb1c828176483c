// Our CUDA kernels, included by launch.cu only. A test runs them on CPU threads: it defines CUDA's
// keywords before it includes this file.
#pragma once

#include <cstdint>

#include "cuda/bodies.h"
#include "dtrain/optim/norm_cell.h"

namespace dtrain::cuda {

/// The number of threads per thread block, and the largest grid.
constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 4096;  // several waves on any GPU; threads loop over the rest

/// Computes the values that all calls of a body share.
template <typename Body>
[[nodiscard]] __device__ auto prepared(const Body& body) {
  if constexpr (requires { body.prepared(); }) {
    return body.prepared();
  } else {
    return body;
  }
}

/// Calls body(0), ..., body(size - 1), with any number of thread blocks.
template <typename Body>
__global__ void __launch_bounds__(kThreads) run_each(std::int64_t size, Body body) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (first >= size) return;
  const auto ready = prepared(body);
  for (std::int64_t i = first; i < size; i += std::int64_t{gridDim.x} * kThreads) ready(i);
}

/// Eight threads of one warp per block of neurons.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) run_dropout(DropoutBody<scalar_t> body) {
  constexpr auto kCounters = static_cast<int>(DropoutBody<scalar_t>::kCounters);
  constexpr int kBlocks = kThreads / kCounters;
  __shared__ KeptBits kept[kBlocks];
  const int own = static_cast<int>(threadIdx.x) / kCounters;
  const unsigned counter = threadIdx.x % kCounters;
  const std::int64_t stride = std::int64_t{gridDim.x} * kBlocks;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kBlocks; first < body.size();
       first += stride) {
    // Surplus threads repeat the last block.
    const std::int64_t last = body.size() - 1;
    const auto block = body.block_at(first + own < last ? first + own : last);
    kept[own].of_counter[counter] = body.kept(block, counter);
    __syncwarp();
    body.drop(block, counter, kept[own]);
    __syncwarp();
  }
}

constexpr int kMirrorTile = 32;

/// One thread block per tile of each matrix; blocks above the diagonal return at once. Tiles pass
/// through shared memory, so that reads and writes are coalesced.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    run_mirror_lower(const T* in, T* out, std::int64_t length) {
  constexpr int kTileRows = kThreads / kMirrorTile;
  __shared__ T tile[kMirrorTile][kMirrorTile + 1];  // padded against bank conflicts
  const auto tiles = static_cast<unsigned>((length + kMirrorTile - 1) / kMirrorTile);
  const std::int64_t first_row = std::int64_t{blockIdx.x / tiles % tiles} * kMirrorTile;
  const std::int64_t first_column = std::int64_t{blockIdx.x % tiles} * kMirrorTile;
  if (first_row < first_column) return;
  const std::int64_t matrix = std::int64_t{blockIdx.x / tiles / tiles} * length * length;
  const int x = static_cast<int>(threadIdx.x) % kMirrorTile;
  const int first_y = static_cast<int>(threadIdx.x) / kMirrorTile;
  for (int y = first_y; y < kMirrorTile; y += kTileRows) {
    const std::int64_t row = first_row + y;
    const std::int64_t column = first_column + x;
    const bool is_lower = row < length && column < row;
    tile[y][x] = is_lower ? in[matrix + row * length + column] : T(0);
  }
  __syncthreads();
  const bool is_diagonal = first_row == first_column;
  for (int y = first_y; y < kMirrorTile; y += kTileRows) {
    if (first_row + y < length && first_column + x < length) {
      out[matrix + (first_row + y) * length + first_column + x] =
          tile[y][x] + (is_diagonal ? tile[x][y] : T(0));
    }
    if (!is_diagonal && first_row + x < length) {
      out[matrix + (first_column + y) * length + first_row + x] = tile[x][y] + T(0);
    }
  }
}

constexpr int kMaxCells = 64;  // per block of 4096 values
constexpr int kLanes = static_cast<int>(optim::kNormLanes);

/// One thread per lane of each cell of a block; then one per cell, and one for the block.
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

/// Adds value(0), ..., value(count - 1) to `sum` in that order: all threads of the block load, and
/// thread 0 adds; only thread 0 has the result.
template <typename Value>
[[nodiscard]] __device__ double add_in_order(double sum, std::int64_t count, Value value) {
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

/// One thread block per parameter.
static __global__ void __launch_bounds__(kThreads)
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

/// One thread block per row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    run_ordered_sum(const T* values, std::int64_t length, double* sums) {
  const T* row = values + blockIdx.x * length;
  const double sum =
      add_in_order(0.0, length, [&](std::int64_t i) { return static_cast<double>(row[i]); });
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace dtrain::cuda
