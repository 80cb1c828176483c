// The events of a run, one struct per kind. docs/formats/metrics.md documents the lines that they
// become in metrics.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

namespace dtrain::metrics {

/// The run begins.
struct StartEvent {
  std::string table;              ///< the start table, for people
  nlohmann::ordered_json fields;  ///< fields of the "start" line
};

/// The loss scale of a float16 run.
struct LossScaling {
  double scale = 1;                ///< for the next step
  std::int64_t skipped_steps = 0;  ///< updates skipped since the run began: gradients overflowed
};

/// Gradient compression in one step, on rank 0.
struct CompressionStats {
  std::int64_t bytes_saved = 0;  ///< uncompressed bytes minus bytes sent
  double residual_norm = 0;      ///< norm of the error feedback, which is not sent yet
  double seconds = 0;            ///< time in compression, without waiting for other ranks
};

/// A finished step; all fields are written to its line in metrics.jsonl.
struct StepEvent {
  std::int64_t step = 0;  ///< steps done, including this one and those with a skipped update
  double loss = 0;        ///< nats per token, mean over the global batch, before the update
  double grad_norm = 0;   ///< L2 norm of all gradients, before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;       ///< consumed so far by all ranks
  std::int64_t samples = 0;      ///< consumed so far by all ranks
  double tokens_per_second = 0;  ///< all ranks, this step
  double step_seconds = 0;
  double wait_seconds = 0;  ///< time within step_seconds that rank 0 was blocked in communication
  /// Model FLOPs utilization, 0..1: model FLOP/s over the highest FLOP/s measured so far. Empty
  /// before the first measurement, and after a step above that rate until a higher one is measured.
  std::optional<double> mfu = {};
  std::int64_t memory_bytes = 0;                     ///< peak tensor memory of rank 0 so far
  std::int64_t comm_bytes = 0;                       ///< sent by rank 0 in this step
  std::optional<LossScaling> loss_scaling = {};      ///< empty without a loss scale
  std::optional<CompressionStats> compression = {};  ///< empty without compression
};

/// An evaluation begins; shown on a terminal only.
struct EvaluationBegin {
  std::int64_t step = 0;
};

/// A validation loss in nats per token and, if the text's size is known, per byte and per word.
struct EvaluationEvent {
  std::int64_t step = 0;
  double val_loss = 0;
  std::int64_t tokens = 0;  ///< number of targets averaged in the loss
  std::optional<double> bits_per_byte = {};
  std::optional<double> perplexity_per_word = {};
  std::string data = {};  ///< identifies the evaluated sequences; empty: unknown
};

/// A text that the model has written.
struct SampleEvent {
  std::int64_t step = 0;
  std::string text;  ///< with its prompt; valid UTF-8, as from readable_text()
};

/// One rank's tensor memory in the first steps, in bytes. Triggers a warning if prediction and peak
/// differ by more than 10%.
struct MemoryEvent {
  std::int64_t step = 0;
  std::int64_t predicted = 0;
  std::int64_t peak = 0;
};

/// A checkpoint was committed.
struct CheckpointEvent {
  std::int64_t step = 0;
  std::string path = {};
  std::int64_t bytes = 0;    ///< size of all ranks' files
  double stall_seconds = 0;  ///< time that training waited for the save
  double seconds = 0;        ///< from the start of the save to its commit
};

/// The run resumes from a checkpoint.
struct ResumeEvent {
  std::int64_t step = 0;
  std::string path;
  double seconds = 0;  ///< time to find, verify and load the checkpoint
};

/// A restarted job has finished its first step.
struct RecoveryEvent {
  std::int64_t step = 0;
  double seconds = 0;  ///< since the failure
};

/// A warning: a line for people and an "error" line with the same message.
struct WarningEvent {
  std::int64_t step = 0;
  std::string message;
};

/// A console-only line, printed above the live status line; --quiet does not suppress it.
struct NoteEvent {
  std::string message;
};

/// The run was stopped on request, and saved.
struct StopEvent {
  std::int64_t step = 0;
  std::string reason;      ///< "SIGTERM", "--time-limit", ...
  std::string checkpoint;  ///< folder of the step's checkpoint
  std::string message;     ///< the same for people
};

/// The run failed.
struct FailureEvent {
  std::int64_t step = 0;  ///< steps done
  std::string message;
};

/// The lowest validation loss of a run.
struct BestCheckpoint {
  std::int64_t step = 0;
  double val_loss = 0;
  std::string path = {};  ///< path of its checkpoint; empty if that was not kept
};

/// A measured figure and its prediction.
template <typename T>
struct Compared {
  std::optional<T> measured = {};
  std::optional<T> predicted = {};
};

/// The mean of the finite losses of some steps, in nats per token.
struct MeanLoss {
  double loss = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t num_losses = 0;  ///< finite losses
};

/// Wall time of a launch by activity, in seconds.
struct TimeBreakdown {
  double steps = 0;
  double evaluation = 0;
  double saving = 0;  ///< time that training waited for saves
  double total = 0;   ///< including samples, profiles and everything else
};

/// The run ended: its results.
struct RunSummary {
  std::int64_t steps = 0;       ///< finished steps of the run
  std::int64_t steps_here = 0;  ///< finished steps of this launch
  std::string reason = {};      ///< the flag that ended the run early; empty: all steps are done
  std::optional<BestCheckpoint> best = {};
  std::optional<MeanLoss> train_loss{};  ///< mean over the last steps; empty without a finite loss
  Compared<double> step_seconds = {};    ///< median of the last median_steps steps
  std::int64_t median_steps = 0;
  std::int64_t memory_ranks = 1;                   ///< ranks of this process, which share memory
  Compared<std::int64_t> memory = {};              ///< peak of this process's tensors, in bytes
  std::optional<EvaluationEvent> validation = {};  ///< the last one
  TimeBreakdown time = {};
  double tokens_per_second = 0;  ///< over time.total
  std::string model_path = {};
  std::int64_t skipped_updates = 0;  ///< since this launch
  std::int64_t failed_checkpoints = 0;
};

using Event = std::variant<StartEvent, StepEvent, EvaluationBegin, EvaluationEvent, SampleEvent,
                           MemoryEvent, CheckpointEvent, ResumeEvent, RecoveryEvent, WarningEvent,
                           NoteEvent, StopEvent, FailureEvent, RunSummary>;

}  // namespace dtrain::metrics
