// The training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/data/loader.h"
#include "dtrain/data/split.h"
#include "dtrain/data/tokenizer/text_units.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/metrics/reporter.h"
#include "dtrain/optim/schedule.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/checkpointer.h"
#include "dtrain/train/folder_monitor.h"
#include "dtrain/train/profiler.h"
#include "dtrain/train/recent_steps.h"
#include "dtrain/train/run_history.h"
#include "dtrain/train/spike_guard.h"
#include "dtrain/train/start_point.h"
#include "dtrain/train/stop_requests.h"

namespace dtrain::train {

/// How a run ended.
struct RunEnd {
  bool stopped = false;  ///< early, with a checkpoint
  std::int64_t step = 0;
};

/// What was expected of a run.
struct Outlook {
  /// Peak bytes of tensors within steps, over all ranks whose peak is measured together.
  std::int64_t memory = 0;
  std::int64_t peak_memory = 0;             ///< likewise over the whole run
  std::optional<double> step_seconds = {};  ///< of a layout that was chosen by it
};

/// Drives an engine over the training data until train.steps updates are done, train.patience is
/// at its end, or somebody asks it to stop. Nothing is saved whose loss, parameters or optimizer
/// state are not finite.
///
/// Collective: every rank constructs and runs one.
/// Throws:     Error{numerics} on all ranks at once, naming the newest checkpoint: for a loss or
///             gradient that is not finite, before the update; after more updates in a row that
///             were left out than train.max_skipped; for a model that is not finite, before a save;
///             Error{data}, Error{checkpoint} for files; what Work::wait throws.
class Trainer {
 public:
  /// A trainer works with these; all must outlive it. `link` may be disconnected. check_folder
  /// throws if the run folder is no longer this job's: called before each save. folder does the same
  /// while training.
  struct Parts {
    const config::Config& config;
    const mesh::MeshGroups& groups;
    comm::ProcessGroup& world;  ///< all ranks, for what their hosts know
    parallel::StepEngine& engine;
    const model::Model& model;  ///< of all ranks together
    Outlook predicted;
    std::optional<double> peak_flops;  ///< FLOP/s of all ranks, measured at the start, for MFU
    bool are_cpus_mixed = false;
    const data::Split& split;
    metrics::Reporter& reporter;
    base::LauncherLink& link;
    Checkpointer& checkpoints;
    StopRequests& requests;
    std::function<void()> check_folder;
    const FolderMonitor& folder;
    std::shared_ptr<const data::Tokenizer> tokenizer = {};  ///< where samples are written
  };
  Trainer(const Parts& parts, const StartPoint& start);

  RunEnd run();

 private:
  static constexpr const char* kWritingMetrics = "writing metrics";  // a LongPhase

  RunEnd run_steps();
  void profile();
  [[nodiscard]] parallel::Votes make_step();
  [[nodiscard]] parallel::StepResult train_step(const std::vector<data::Batch>& microbatches);
  [[nodiscard]] std::vector<data::Batch> read_batches();
  void restart_step_clock();
  void refuse(const parallel::StepResult& result);
  void watch_spikes(const parallel::StepResult& result, const parallel::StepLimits& limits);
  void count_skip(const parallel::StepResult& result);
  void report(const parallel::StepResult& result);
  [[nodiscard]] std::int64_t peak_memory() const;
  void report_memory();
  void warn_of_step(const std::string& message);
  void measure_peak();
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] std::optional<metrics::LossScaling> loss_scaling();
  [[nodiscard]] std::optional<metrics::Compression> compression() const;
  [[nodiscard]] bool stops_after(bool stop_requested);
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] bool is_out_of_patience() const;
  void save_after_step(const parallel::Votes& votes);
  void write_sample();
  [[nodiscard]] bool evaluate_validation();
  void make_copies_equal();
  void check_savable();
  [[nodiscard]] std::string advice() const;
  [[nodiscard]] std::string advice_on_skips(const parallel::StepResult& result) const;
  [[noreturn]] void fail(const std::string& found, const std::string& advice);
  [[nodiscard]] checkpoint::SavePoint save_point() const;
  void save_final();
  [[nodiscard]] std::optional<metrics::BestCheckpoint> best_checkpoint() const;
  void summarize();

  const config::Config& config_;
  const mesh::MeshGroups& groups_;
  comm::ProcessGroup& world_;
  parallel::StepEngine& engine_;
  const model::Model& model_;
  bool are_cpus_mixed_;
  metrics::Reporter& reporter_;
  base::LauncherLink& link_;
  Checkpointer& checkpoints_;
  StopRequests& requests_;
  std::function<void()> check_folder_;
  const FolderMonitor& folder_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  std::string tokenizer_identity_;  // of the training data
  data::EvaluationSequences validation_;
  data::TextUnits units_;            // of the validation data
  data::EvaluationSequences probe_;  // training text that shows whether the loss is finite
  data::Loader loader_;
  optim::Schedule schedule_;
  std::int64_t step_;
  std::int64_t tokens_;
  std::int64_t start_tokens_;
  std::int64_t steps_done_ = 0;  // since this start
  metrics::PeakFlops peak_;
  Outlook predicted_;
  std::int64_t peak_before_sample_ = 0;  // in bytes
  base::Clock::time_point start_;
  base::Clock::time_point step_start_;
  comm::CallCounters counters_;  // of all groups, at the last report
  RecentSteps recent_;           // for the summary, as spent_
  metrics::TimeSpent spent_;
  std::int64_t skipped_ = 0;  // updates left out since this start
  std::int64_t skipped_in_a_row_ = 0;
  std::optional<metrics::EvaluationRecord> last_evaluation_;
  std::int64_t evaluated_step_ = -1;  // of the last evaluation, which was finite
  std::int64_t checked_step_ = -1;    // whose state was found finite
  std::int64_t equal_step_ = -1;      // after which copies were made equal, with mixed CPUs
  bool owes_evaluation_;              // of the step that it starts at
  ValidationRecord validation_record_;
  SpikeGuard spikes_;
  Profiler profiler_;
  bool owes_best_ = false;  // the checkpoint of a new lowest validation loss
};

}  // namespace dtrain::train
