// BDH as a recurrence: attention reads earlier positions through a state of constant size, so the
// cost per token is constant. docs/guide/generation.md derives the recurrence from the blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
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

  /// Computes the prompt in chunks of positions: a position attends to its own chunk through scores
  /// and to earlier chunks through the state, as chunked attention does in training.
  [[nodiscard]] const at::Tensor& read_prompt(std::span<const std::int64_t> tokens) override;
  [[nodiscard]] const at::Tensor& step(std::int64_t token) override;

 private:
  struct Level {
    at::Tensor encoder;    // (nh*N, D)
    at::Tensor encoder_v;  // (nh, N, D)
    at::Tensor decoder;    // (D, nh*N)
    at::Tensor state;      // (nh, N, D)
  };

  void check_tokens(std::span<const std::int64_t> tokens) const;
  [[nodiscard]] at::Tensor rotations(std::int64_t count);
  void run_level(Level& level, const at::Tensor& rotation);
  [[nodiscard]] at::Tensor read_level(Level& level, const at::Tensor& x,
                                      const at::Tensor& rotations, bool needs_output) const;

  BdhSizes sizes_;
  at::Tensor embed_;    // (V, D)
  at::Tensor lm_head_;  // (V, D)
  std::vector<Level> levels_;
  std::int64_t position_ = 0;  // position of the next token
  at::Tensor rotations_;       // (kChunk, N/2, 2), of the chunk that contains position_

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
