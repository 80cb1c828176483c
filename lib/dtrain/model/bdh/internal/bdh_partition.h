// Cuts a BDH along the tensor axis: by heads while there are enough of them, then by the neurons
// within a head, and optionally by the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/mesh/device_mesh.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::bdh {

/// The part of one rank. In storage neurons are rows (nh*N, D), so that a rank's part of encoder,
/// encoder_v and decoder is the same range of rows:
///
///   tp <= nh: nh/tp whole heads           tp > nh: 1/(tp/nh) of the neurons of one head
///
/// Everything that works on neurons (products with the three matrices, ReLU, RoPE, dropout) is the
/// same on a part of them; what adds up over neurons is summed over ranks (TensorAxis).
struct BdhSlice {
  BdhSizes whole;
  TensorCoordinate place;
  std::int64_t heads = 0;           ///< computed here, whole or in part
  std::int64_t neurons = 0;         ///< of each of these heads, even
  std::int64_t first_neuron = 0;    ///< of the model's nh*N; even
  std::int64_t ranks_per_head = 1;  ///< neighbours on the axis that share a head
  std::int64_t vocab = 0;           ///< rows of embed, columns of lm_head
  std::int64_t first_token = 0;     ///< the first of these

  [[nodiscard]] std::int64_t all_neurons() const { return heads * neurons; }
  [[nodiscard]] bool splits_vocab() const { return vocab != whole.vocab; }
  /// The neurons held, as their head numbers them.
  [[nodiscard]] HeadSlice head_slice() const {
    return {.whole = whole.neurons, .first = first_neuron % whole.neurons, .count = neurons};
  }
  /// That the axis a block is run with is the one this part was made for.
  void check(const TensorAxis& axis) const;
};

/// Throws: Error{usage} naming --tp and what it does not fit, and what would fit.
[[nodiscard]] BdhSlice slice_of(const BdhSizes& sizes, const TensorCoordinate& place);

/// The subgroups of a tensor axis of `tp` ranks: one, of the ranks that share a head.
///
/// Throws: as slice_of.
[[nodiscard]] std::vector<mesh::Subgroup> tensor_subgroups(const BdhSizes& sizes, std::int64_t tp);
/// Its number.
inline constexpr std::size_t kHeadSubgroup = 0;

}  // namespace dtrain::model::bdh
