// The report of a step; metrics.jsonl holds one line of exactly these fields
// (docs/formats/metrics.md).
#pragma once

#include <cstdint>
#include <optional>

namespace dtrain::metrics {

/// The loss scale of a float16 run.
struct LossScaling {
  double scale = 1;                ///< for the next step
  std::int64_t skipped_steps = 0;  ///< left out since the run began, because gradients overflowed
};

/// What compression of gradients did in a step, on rank 0.
struct Compression {
  std::int64_t bytes_saved = 0;  ///< of what whole gradients take; the rest has been sent
  double residual_norm = 0;      ///< of what has not been sent yet
  double seconds = 0;            ///< spent with it, without waits
};

struct StepRecord {
  std::int64_t step = 0;  ///< steps done, this one and those without an update included
  double loss = 0;        ///< nats per token, mean over the global batch, before the update
  double grad_norm = 0;   ///< of all gradients, before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;       ///< consumed so far by all ranks
  std::int64_t samples = 0;      ///< consumed so far by all ranks
  double tokens_per_second = 0;  ///< all ranks, this step
  double step_seconds = 0;
  double wait_seconds = 0;  ///< of step_seconds, rank 0 blocked in communication
  /// Model FLOPs per second over the highest rate measured so far, 0..1; absent if none was,
  /// or after a step that beat it.
  std::optional<double> mfu = {};
  std::int64_t memory_bytes = 0;                 ///< peak tensor memory of rank 0 so far
  std::int64_t comm_bytes = 0;                   ///< sent by rank 0 in this step
  std::optional<LossScaling> loss_scaling = {};  ///< loss_scale, skipped_steps; absent without
  /// bytes_saved, residual_norm, compress_seconds; absent without.
  std::optional<Compression> compression = {};
};

}  // namespace dtrain::metrics
