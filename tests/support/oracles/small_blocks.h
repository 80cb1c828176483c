// A small model of three kinds of blocks. Tests can observe the blocks' passes, and select the
// microbatches that use a parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/batch.h"
#include "dtrain/model/model.h"

namespace dtrain::testing {

/// Callbacks of an observed block, and when it uses its parameter.
struct BlockWatch {
  std::function<void()> on_forward = {};
  std::function<void()> on_backward = {};  ///< before the block's own gradients are computed
  /// Returns whether the block uses its parameter in this microbatch; empty: always.
  std::function<bool(std::int64_t first_sample)> uses_parameter = {};
  bool is_native = false;  ///< the block has a native backward; only its forward is observed
};

/// An embedding, one mixing block y = tanh(x W_i) per entry of `watches`, and a head; width 8,
/// vocabulary 16. Parameters: "embed", "mix.0", "mix.1", ..., "head".
[[nodiscard]] std::unique_ptr<model::Model> small_model(const std::vector<BlockWatch>& watches);

/// Wraps `block` with callbacks; uses_parameter is ignored.
[[nodiscard]] std::unique_ptr<model::Block> watched(std::unique_ptr<model::Block> block,
                                                    BlockWatch watch);

/// Returns two sequences of five tokens that depend on first_sample.
[[nodiscard]] data::Batch small_batch(std::int64_t first_sample);

}  // namespace dtrain::testing
