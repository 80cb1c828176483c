// BDH as a recurrence: attention reads earlier positions through a state of constant size, so the
// cost per token is constant. docs/guide/generation.md derives the recurrence from the blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/family.h"
#include "dtrain/param/arena.h"

namespace dtrain::model::bdh {

/// Computes the logits of the blocks in evaluation mode, up to rounding. Holds levels * nh * N * D
/// state values, in float32 if the weights have 16 bits.
class BdhRecurrent final : public Generator {
 public:
  /// weights: parameters indexed by parameter_ids(sizes); shared, not copied, and must not change
  /// during the sequence.
  BdhRecurrent(const BdhSizes& sizes, const param::Arena& weights);

  [[nodiscard]] const at::Tensor& step(std::int64_t token) override;

 private:
  struct Level {
    at::Tensor encoder;    // (nh*N, D)
    at::Tensor encoder_v;  // (nh, N, D)
    at::Tensor decoder;    // (D, nh*N)
    at::Tensor state;      // (nh, N, D)
  };

  [[nodiscard]] at::Tensor rotation();
  void run_level(Level& level, const at::Tensor& rotation);

  BdhSizes sizes_;
  at::Tensor embed_;    // (V, D)
  at::Tensor lm_head_;  // (V, D)
  std::vector<Level> levels_;
  std::int64_t position_ = 0;  // position of the next token
  at::Tensor rotations_;       // (kRotationChunk, N/2, 2), of the chunk that contains position_

  // Overwritten for every token and level; q_ and attended_ have the state's dtype.
  at::Tensor x_;         // (D)
  at::Tensor xs_;        // (nh*N)
  at::Tensor q_;         // (nh*N)
  at::Tensor attended_;  // (nh, 1, D)
  at::Tensor ys_;        // (nh, N, 1)
  at::Tensor y_;         // (D)
  at::Tensor logits_;    // (V)
};

}  // namespace dtrain::model::bdh
