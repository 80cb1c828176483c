// Reports a run: metrics.jsonl, TensorBoard, the live line or plain lines, and the summary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/metrics/console.h"
#include "dtrain/metrics/event_file.h"
#include "dtrain/metrics/metrics_file.h"

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

/// The report of a step; metrics.jsonl holds one line of exactly these fields
/// (docs/formats/metrics.md).
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

/// The lowest validation loss of a run.
struct BestCheckpoint {
  std::int64_t step = 0;
  double val_loss = 0;
  std::string path = {};  ///< of the checkpoint; empty: it was not kept
};

/// A loss on validation data, in nats per token and, where the text's size is known, in its units.
struct EvaluationRecord {
  std::int64_t step = 0;
  double val_loss = 0;
  std::int64_t tokens = 0;  ///< targets behind the loss
  std::optional<double> bits_per_byte = {};
  std::optional<double> perplexity_per_word = {};
  std::string data = {};  ///< which sequences it is the loss of; empty: unknown
};

/// A figure that was measured, and what was expected of it.
template <typename T>
struct Compared {
  std::optional<T> measured = {};   ///< none: nothing was measured
  std::optional<T> predicted = {};  ///< none: nothing was expected
};

/// The mean of the finite losses of some steps, in nats per token.
struct MeanLoss {
  double loss = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t num_losses = 0;  ///< that are finite
};

/// Where the time of a start went, in seconds.
struct TimeSpent {
  double steps = 0;
  double evaluation = 0;
  double saving = 0;  ///< training stood still for it
  double total = 0;   ///< with all the rest: samples, profiles
};

/// The results of a finished run.
struct Summary {
  std::int64_t steps = 0;       ///< of the run
  std::int64_t steps_here = 0;  ///< of them, of this start
  std::string reason = {};      ///< the flag that ended it early; empty: its steps are done
  std::optional<BestCheckpoint> best = {};
  std::optional<MeanLoss> train_loss{};  ///< of the last steps; none without a finite loss
  Compared<double> step_seconds = {};    ///< the median of the last median_steps
  std::int64_t median_steps = 0;
  std::int64_t memory_ranks = 1;                    ///< ranks of this process, which share memory
  Compared<std::int64_t> memory = {};               ///< peak of this process's tensors, in bytes
  std::optional<EvaluationRecord> validation = {};  ///< the last one
  TimeSpent time = {};
  double tokens_per_second = 0;  ///< of time.total
  std::string model_path = {};
  std::int64_t skipped_updates = 0;  ///< left out since this start
  std::int64_t failed_checkpoints = 0;
};

/// A checkpoint that was committed.
struct CheckpointRecord {
  std::int64_t step = 0;
  std::string path = {};
  std::int64_t bytes = 0;    ///< of all ranks
  double stall_seconds = 0;  ///< training stood still
  double seconds = 0;        ///< from its begin to its commit
};

/// A rank's tensor memory after the first steps, in bytes.
struct MemoryRecord {
  std::int64_t step = 0;
  std::int64_t predicted = 0;
  std::int64_t peak = 0;
};

/// The checkpoint that a run resumes from.
struct ResumeRecord {
  std::int64_t step = 0;
  std::string path;
  double seconds = 0;  ///< to find, verify and load it
};

/// A run that was stopped on request, and saved.
struct StopRecord {
  std::int64_t step = 0;
  std::string reason;      ///< "SIGTERM", "--time-limit", ...
  std::string checkpoint;  ///< the folder of the step's
  std::string message;     ///< the same for people
};

/// Takes reports on every rank; one rank's reporter writes them.
///
/// Throws:  Error{data} if metrics.jsonl or an event file cannot be written.
/// Threads: one.
class Reporter {
 public:
  struct Options {
    bool writes = true;  ///< false: everything is dropped
    std::string metrics_path;
    bool appends = false;           ///< to a metrics.jsonl that is there
    std::string event_folder = {};  ///< for TensorBoard; empty: none
    std::int64_t first_step = 1;    ///< of this start
    Console::Options console;
    bool is_quiet = false;  ///< people get warnings, notes and the summary alone; files get all
    std::int64_t log_every = 10;  ///< steps between plain lines; 0: none
    std::int64_t total_steps = 0;
  };

  explicit Reporter(Options options);

  /// False: everything is dropped.
  [[nodiscard]] bool writes() const { return options_.writes; }
  /// table: lines for people. fields: of the "start" line.
  void start(const std::string& table, const nlohmann::ordered_json& fields);
  void step(const StepRecord& record);
  /// Says on a terminal what takes so long.
  void evaluating(std::int64_t step);
  void evaluation(const EvaluationRecord& record);
  /// text: what the model has written, its prompt included.
  void sample(std::int64_t step, const std::string& text);
  /// Compares the start table's prediction with the peak of the first steps, in bytes of this rank.
  /// Warns where they are more than a tenth apart.
  void memory(const MemoryRecord& record);
  void checkpoint(const CheckpointRecord& record);
  void resume(const ResumeRecord& record);
  /// A restarted job does new steps again, `seconds` after the failure.
  void recovery(std::int64_t step, double seconds);
  /// A line for people and an "error" line with the same message.
  void warn(std::int64_t step, const std::string& message);
  /// The width of the terminal; unlimited on anything else.
  [[nodiscard]] std::size_t room() const;
  /// A line for people, above the live line.
  void note(const std::string& message);
  /// A line for people, and a "stop" line, which stands even where nobody reads the output.
  void stop(const StopRecord& record);
  void end(const Summary& summary);
  /// The run has failed, `step` steps done. Does not throw: the disk may be what failed.
  void failure(std::int64_t step, const std::string& message) noexcept;
  /// Throws: Error{data} if the last parts of a file could not be written.
  void finish();

 private:
  // Lines for people that --quiet leaves out.
  void tell(std::string_view text);
  void tell_progress(std::string_view text);
  [[nodiscard]] LinePart step_part(std::int64_t step) const;
  /// In at most `room` characters.
  [[nodiscard]] std::string progress_line(const StepRecord& record, std::size_t room) const;

  Options options_;
  std::unique_ptr<AppendedFile> file_;
  std::unique_ptr<EventFile> events_;  // null: no TensorBoard
  std::unique_ptr<Console> console_;
  std::string last_validation_;
  double smoothed_step_seconds_ = 0;
};

}  // namespace dtrain::metrics
