// The memory of a rank, part by part, computed from sizes before anything is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace dtrain::parallel {

/// Whoever allocates returns its own parts from a static function beside its code; sums of them
/// predict a rank. docs/guide/memory.md explains the parts.
///
/// Units: bytes of one rank.
struct MemoryPlan {
  std::int64_t parameters = 0;   ///< masters, and copies that stay gathered
  std::int64_t gradients = 0;    ///< spare arenas of the tree order included
  std::int64_t optimizer = 0;    ///< values for each weight
  std::int64_t units = 0;        ///< gathered, and whole gradients of single units, at the peak
  std::int64_t activations = 0;  ///< kept from forward to backward: graphs and inputs
  std::int64_t buffers = 0;      ///< constant tables, tokens, and what communication takes
  std::int64_t work = 0;         ///< temporaries of a block, at the peak
  std::int64_t checkpoint = 0;   ///< the copy that is written while training goes on

  // No parts of the total.
  /// Taken when the last checkpoint and the model are written: activations, units and work are gone.
  std::int64_t ending = 0;
  std::int64_t travelling = 0;  ///< encoded gradients, which take the place of activations
  std::int64_t state = 0;    ///< whatever a checkpoint saves, wherever it lies, and replicas share
  std::int64_t carried = 0;  ///< what it saves of each rank's own
  std::int64_t host = 0;     ///< of a rank on a device: the memory of the host that it takes

  /// At the peak of a step.
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + units + activations + buffers + work + checkpoint;
  }
  /// Of the whole run.
  [[nodiscard]] std::int64_t peak() const {
    return std::max(total(), total() - activations - units - work + ending);
  }
  friend MemoryPlan operator+(MemoryPlan a, const MemoryPlan& b) {
    using P = MemoryPlan;
    for (const auto part :
         {&P::parameters, &P::gradients, &P::optimizer, &P::units, &P::activations, &P::buffers,
          &P::work, &P::checkpoint, &P::ending, &P::travelling, &P::state, &P::carried, &P::host}) {
      a.*part += b.*part;
    }
    return a;
  }
};

/// A part of MemoryPlan::total().
struct MemoryPart {
  const char* name;    ///< "units": its key in metrics.jsonl
  const char* label;   ///< "gathered shards"
  const char* phrase;  ///< "the optimizer's state takes"
  std::int64_t MemoryPlan::*bytes;
};
inline constexpr std::array<MemoryPart, 8> kMemoryParts{
    {{"parameters", "parameters", "parameters take", &MemoryPlan::parameters},
     {"gradients", "gradients", "gradients take", &MemoryPlan::gradients},
     {"optimizer", "optimizer", "the optimizer's state takes", &MemoryPlan::optimizer},
     {"units", "gathered shards", "gathered shards take", &MemoryPlan::units},
     {"activations", "activations", "activations take", &MemoryPlan::activations},
     {"buffers", "buffers", "buffers take", &MemoryPlan::buffers},
     {"work", "work", "temporaries take", &MemoryPlan::work},
     {"checkpoint", "checkpoint", "the copy for checkpoints takes", &MemoryPlan::checkpoint}}};

}  // namespace dtrain::parallel
