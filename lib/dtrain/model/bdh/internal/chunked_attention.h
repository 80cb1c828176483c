// Attention of the plain kernels over a sequence that is cut into chunks: docs/guide/model.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model::bdh {

/// Returns strictly_lower(q qᵀ) values without the T x T scores: a position meets those of its chunk
/// by scores, and all earlier chunks by their state, the sum of qᵀ values (batch, N, D), which
/// bfloat16 keeps in float32.
///
/// Shapes: q (batch, T, N); values (batch, T, D) of q's dtype, of float16's in float32; returns
///         (batch, T, D) like values. chunk: positions, below T.
[[nodiscard]] at::Tensor attend_in_chunks(const at::Tensor& q, const at::Tensor& values,
                                          std::int64_t chunk);

/// The bytes of temporaries: a state, the product that is added to it, a chunk's gradients.
struct ChunkWork {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

/// Units: elements of all states, of a chunk's q and of a chunk's scores; dtype: q's.
[[nodiscard]] ChunkWork chunk_work(at::ScalarType dtype, std::int64_t states, std::int64_t queries,
                                   std::int64_t scores);

/// The gradient of products of each row with those before it, for both of its factors at once:
/// lower + lowerᵀ, where lower is what lies strictly below the diagonal of each matrix.
///
/// Shapes:  matrices (batch, T, T), floating point -> (batch, T, T), contiguous.
/// Threads: any.
[[nodiscard]] at::Tensor mirror_lower(const at::Tensor& matrices);

}  // namespace dtrain::model::bdh
