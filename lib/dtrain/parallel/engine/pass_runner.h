// Runs the passes of blocks that a list of actions asks for.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "dtrain/parallel/action.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// A microbatch as its blocks see it.
struct MicrobatchInput {
  at::Tensor ids = {};           ///< (B, T) int64
  at::Tensor targets = {};       ///< (B, T) int64
  at::Tensor first_sample = {};  ///< () int64
};

/// Runs single blocks forward and backward, microbatch by microbatch.
///
/// Collective: over the tensor axis, every forward and backward.
/// Threads:    one; backward passes run on the calling thread.
class PassRunner {
 public:
  using OnSettled = std::function<void(param::ParameterId)>;

  virtual ~PassRunner() = default;

  /// Gives a microbatch its tokens.
  virtual void begin(MicrobatchId microbatch, const MicrobatchInput& input) = 0;
  /// Forgets it.
  virtual void end(MicrobatchId microbatch) = 0;
  /// Runs one block on what the block before it gave; the last block's per-token losses (B, T) are
  /// returned, valid until the next pass, else an undefined tensor.
  virtual at::Tensor forward(BlockId block, MicrobatchId microbatch) = 0;
  /// Runs the block's backward. Where recomputed blocks run again for it, they are this one and
  /// those below it in its group. seed: the gradient of each token's loss, read for the last block.
  virtual void backward(BlockId block, MicrobatchId microbatch, double seed,
                        const OnSettled& on_settled) = 0;
};

}  // namespace dtrain::parallel
