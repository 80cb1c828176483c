// A rank's predicted memory by category, computed from sizes before allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace dtrain::parallel {

/// A rank's predicted memory: the sum over classes that allocate, each with a function that predicts
/// its memory. docs/guide/memory.md explains the categories.
///
/// Units: bytes per rank.
struct MemoryPlan {
  std::int64_t parameters = 0;   ///< master weights, and copies that stay gathered
  std::int64_t gradients = 0;    ///< including the spare arenas of tree-order accumulation
  std::int64_t optimizer = 0;    ///< optimizer state, such as Adam's moments
  std::int64_t units = 0;        ///< gathered units and unsharded unit gradients, at the peak
  std::int64_t activations = 0;  ///< graphs and inputs saved for the backward pass
  std::int64_t buffers = 0;      ///< constant tables, tokens, communication buffers
  std::int64_t work = 0;         ///< temporaries of one block, at the peak
  std::int64_t checkpoint = 0;   ///< staging copy of an asynchronous checkpoint

  // The fields below are not part of total().
  /// Memory to write the last checkpoint and the final model, after activations, units and work
  /// have been freed.
  std::int64_t final_save = 0;
  std::int64_t encoded_gradients = 0;  ///< gradients encoded for sending, in freed activations
  std::int64_t state = 0;              ///< checkpointed state that replicas share, on any device
  std::int64_t residuals = 0;          ///< checkpointed state private to this rank
  std::int64_t host = 0;               ///< host memory of a rank that computes on a device

  /// Peak of a step.
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + units + activations + buffers + work + checkpoint;
  }
  /// Peak of the whole run.
  [[nodiscard]] std::int64_t peak() const {
    return std::max(total(), total() - activations - units - work + final_save);
  }
  friend MemoryPlan operator+(MemoryPlan a, const MemoryPlan& b) {
    using P = MemoryPlan;
    for (const auto part : {&P::parameters, &P::gradients, &P::optimizer, &P::units,
                            &P::activations, &P::buffers, &P::work, &P::checkpoint, &P::final_save,
                            &P::encoded_gradients, &P::state, &P::residuals, &P::host}) {
      a.*part += b.*part;
    }
    return a;
  }
};

/// One category of MemoryPlan::total().
struct MemoryPart {
  const char* name;    ///< key in metrics.jsonl, such as "units"
  const char* label;   ///< for tables, such as "gathered shards"
  const char* phrase;  ///< for sentences, such as "the optimizer's state takes"
  std::int64_t MemoryPlan::*bytes;
};
inline constexpr std::array<MemoryPart, 8> kMemoryParts{
    {{"parameters", "parameters", "parameters take", &MemoryPlan::parameters},
     {"gradients", "gradients", "gradients take", &MemoryPlan::gradients},
     {"optimizer", "optimizer", "the optimizer's state takes", &MemoryPlan::optimizer},
     {"units", "gathered shards", "gathered shards take", &MemoryPlan::units},
     {"activations", "activations", "activations take", &MemoryPlan::activations},
     {"buffers", "buffers", "buffers take", &MemoryPlan::buffers},
     {"work", "temporaries", "temporaries take", &MemoryPlan::work},
     {"checkpoint", "checkpoint", "the checkpoint copy takes", &MemoryPlan::checkpoint}}};

}  // namespace dtrain::parallel
