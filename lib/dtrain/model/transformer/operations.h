// Operations that the blocks of transformer families share, and their memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"
#include "dtrain/model/transformer/parameter_list.h"
#include "dtrain/model/transformer/row_operations.h"

namespace dtrain::model {

/// Describes the kernels of the layers, for the start table.
[[nodiscard]] std::string describe_kernels(config::Kernels kernels);

/// The values that the embedding and the layers report: act.embed and act.layerK.out.
[[nodiscard]] std::vector<ReportedValue> stream_values(const config::ModelConfig& config,
                                                       std::int64_t rows, std::int64_t length);

/// The index of the embedding's dropout, after those of the layers (DropoutOffsets::level).
[[nodiscard]] std::int64_t embedding_dropout_index(std::int64_t layers);

/// Applies dropout in training. x is equal on all ranks of the tensor axis.
///
/// Shapes: x (B, T, D); returns the same.
[[nodiscard]] at::Tensor dropped(const at::Tensor& x, double probability, std::int64_t index,
                                 const BlockContext& context);

/// Arguments of residual_layer.
struct ResidualLayer {
  std::int64_t index = 0;
  double dropout = 0;  ///< probability
};

/// Computes h + dropout(mlp(h)) with h = x + dropout(attention(x)); each of the two includes its norm.
/// Reports act.layerK.out.
///
/// Shapes: x (B, T, D); returns the same.
[[nodiscard]] at::Tensor residual_layer(
    const at::Tensor& x, const ResidualLayer& layer, const BlockContext& context,
    const std::function<at::Tensor(const at::Tensor&)>& attention,
    const std::function<at::Tensor(const at::Tensor&)>& mlp);

/// Looks up the embedding of each token.
///
/// Shapes: weight (V/tp, D), ids (B, T) int64; returns (B, T, D) in the weight's dtype.
/// Collective: if the vocabulary is split, over the tensor axis.
[[nodiscard]] at::Tensor embedded(const at::Tensor& weight, const at::Tensor& ids,
                                  const VocabularySlice& vocabulary, const BlockContext& context);

/// Attention to all positions up to one's own, scaled by 1 / sqrt(d).
///
/// Shapes: all (B, H, T, d); returns (B, T, H*d).
[[nodiscard]] at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value);

/// Passes on the input of the output layer, whose gradient is summed over ranks if the vocabulary is
/// split, and returns each token's loss. Reports logits (B, T, V/tp).
///
/// Shapes: normed (B, T, D), weight (V/tp, D); returns (B, T) in nats.
/// Collective: if the vocabulary is split, over the tensor axis.
[[nodiscard]] at::Tensor token_losses(const at::Tensor& normed, const at::Tensor& weight,
                                      const VocabularySlice& vocabulary, const RowOperations& rows,
                                      const BlockContext& context);

/// Memory of `embedded` and the dropout that follows.
[[nodiscard]] BlockMemory embedding_memory(const BatchShape& shape, std::int64_t width,
                                           const VocabularySlice& vocabulary, bool has_dropout);

/// Sizes of a layer on a rank of a tensor axis with several ranks.
struct SplitLayer {
  std::int64_t width = 0;  ///< D
  std::int64_t inner = 0;  ///< columns of the MLP held
  /// The most outputs, or inputs, held of a split linear map.
  std::int64_t largest = 0;
  std::int64_t whole_rows = 0;  ///< rows of matrices that every rank holds whole (replicated)
};

/// Adds to a layer's memory what float16 needs besides: inputs of column_linear, products of
/// row_linear, and the factors and gradients of both are float32 (split_linear.h). No-op for other
/// dtypes.
void add_widened_memory(BlockMemory& memory, const BatchShape& shape, const SplitLayer& layer);

/// Memory of a norm and `token_losses`.
[[nodiscard]] BlockMemory losses_memory(const BatchShape& shape, std::int64_t width,
                                        const VocabularySlice& vocabulary,
                                        const RowOperations& rows);

}  // namespace dtrain::model
