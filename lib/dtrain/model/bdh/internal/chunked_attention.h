// Chunked causal linear attention for --kernels plain (docs/guide/model.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model::bdh {

/// Computes strictly_lower(q qᵀ) values without the T x T scores: positions attend to their own
/// chunk through scores, and to all earlier chunks through a state, the sum of qᵀ values (batch, N,
/// D), kept in float32 for bfloat16.
///
/// Shapes: q (batch, T, N); values (batch, T, D) of q's dtype, or float32 if that is float16;
///         returns (batch, T, D) like values.
/// Units:  chunk counts positions, below T.
[[nodiscard]] at::Tensor attend_in_chunks(const at::Tensor& q, const at::Tensor& values,
                                          std::int64_t chunk);

/// Bytes of temporaries: a state, the product added to it, and a chunk's gradients.
struct ChunkWork {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

/// Predicts the temporaries of attend_in_chunks. dtype: q's dtype.
///
/// Units: number of elements: `states` of all states, `queries` of a chunk's q, `scores` of a
///        chunk's scores.
[[nodiscard]] ChunkWork chunk_work(at::ScalarType dtype, std::int64_t states, std::int64_t queries,
                                   std::int64_t scores);

/// Returns L + Lᵀ, where L is the strictly lower triangle of each matrix. Applied to dS, the
/// gradient of S = q qᵀ, it gives the matrix whose product with q is the gradient of q.
///
/// Shapes:  matrices (batch, T, T), floating point -> (batch, T, T), contiguous.
/// Threads: any.
[[nodiscard]] at::Tensor mirror_lower(const at::Tensor& matrices);

}  // namespace dtrain::model::bdh
