// Launches our kernels, whose per-thread code is in bodies.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/bodies.h"
#include "dtrain/optim/norm_cell.h"

namespace dtrain::cuda {

/// True if our kernels are compiled for the calling thread's GPU.
[[nodiscard]] bool has_kernels();

/// Enqueues body(0), ..., body(body.size() - 1) on the stream, in parallel. Instantiated in launch.cu
/// for the bodies of bodies.h and tree_reduce_body.h.
///
/// Throws:  Error{device}.
/// Threads: any.
template <typename Body>
void launch(const Body& body, cudaStream_t stream);

/// Launches the operator dropout.
template <typename scalar_t>
void launch_dropout(const DropoutBody<scalar_t>& body, cudaStream_t stream);

/// Launches the operator mirror_lower on `batch` matrices of `length` rows.
template <typename T>
void launch_mirror_lower(const T* in, T* out, std::int64_t batch, std::int64_t length,
                         cudaStream_t stream);

/// Launches the operator norm_sums_ on `blocks` rows of the table.
template <typename T>
void launch_norm_sums(const T* values, const optim::NormBlock* table, std::int64_t blocks,
                      double* sums, cudaStream_t stream);

/// Launches the operator norm_squares.
void launch_norm_squares(const double* sums, const SlotRange* blocks, const std::int64_t* ends,
                         std::int64_t parameters, double* squares, cudaStream_t stream);

/// Launches the operator ordered_sum on `rows` rows of `length` values.
template <typename T>
void launch_ordered_sum(const T* values, std::int64_t rows, std::int64_t length, double* sums,
                        cudaStream_t stream);

}  // namespace dtrain::cuda
