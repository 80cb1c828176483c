// Splits BDH over the tensor axis: by heads as far as possible, then by the neurons within a head,
// and optionally by the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/mesh/device_mesh.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::bdh {

/// The tensor-parallel slice of one rank. The stored matrices encoder, encoder_v and decoder have
/// one row per neuron (nh*N, D), so a rank's slices of all three are the same range of rows:
///
///   tp <= nh: nh/tp whole heads           tp > nh: 1/(tp/nh) of the neurons of one head
///
/// All operations on neurons (products with the three matrices, ReLU, RoPE, dropout) apply to a
/// slice unchanged; sums over neurons are all-reduced over ranks (TensorAxis).
struct BdhSlice {
  BdhSizes whole;
  TensorCoordinate place;
  std::int64_t heads = 0;           ///< heads computed on this rank, whole or shared
  std::int64_t neurons = 0;         ///< neurons per head computed on this rank, even
  std::int64_t first_neuron = 0;    ///< index of the first one among the model's nh*N; even
  std::int64_t ranks_per_head = 1;  ///< consecutive ranks that share a head
  std::int64_t vocab = 0;           ///< rows of embed and columns of lm_head on this rank
  std::int64_t first_token = 0;     ///< index of the first of these rows and columns

  [[nodiscard]] std::int64_t all_neurons() const { return heads * neurons; }
  [[nodiscard]] bool splits_vocab() const { return vocab != whole.vocab; }
  /// This rank's neurons, as indices within their head.
  [[nodiscard]] HeadSlice head_slice() const {
    return {.whole = whole.neurons, .first = first_neuron % whole.neurons, .count = neurons};
  }
  /// Asserts that `axis` is the one this slice was made for.
  void check(const TensorAxis& axis) const;
};

/// Returns the slice of the rank at `place`.
///
/// Throws: Error{usage} naming --tp, the model size that it does not divide, and the nearest valid
///         values; or a vocabulary to split that is below --tp.
[[nodiscard]] BdhSlice slice_of(const BdhSizes& sizes, const TensorCoordinate& place);

/// Returns the subgroups of a tensor axis of `tp` ranks: a single entry, the ranks that share a
/// head.
///
/// Throws: as slice_of.
[[nodiscard]] std::vector<mesh::Subgroup> tensor_subgroups(const BdhSizes& sizes, std::int64_t tp);
/// Index of the head subgroup in tensor_subgroups().
inline constexpr std::size_t kHeadSubgroup = 0;

}  // namespace dtrain::model::bdh
