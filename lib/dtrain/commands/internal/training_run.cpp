#include "dtrain/commands/internal/training_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/checkpoint/store/kept_files.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/resolve/notices.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/job/ranks.h"
#include "dtrain/job/run_files.h"
#include "dtrain/job/start_table.h"
#include "dtrain/kernels/gemm.h"
#include "dtrain/metrics/metrics_file.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/text_sampler.h"

namespace dtrain::commands {
namespace {

namespace store = checkpoint::store;

metrics::Reporter::Options reporter_options(const config::Config& config, const base::RankEnv& env,
                                            const base::LauncherLink& link,
                                            const train::StartPoint& start, bool is_quiet) {
  const bool has_terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool live = env.launcher_terminal || (has_terminal && ::isatty(STDERR_FILENO) == 1);
  const auto columns = [&link, initial = env.terminal_columns] {
    return link.columns() > 0 ? link.columns() : initial;
  };
  return {
      .writes = env.rank == 0,
      .metrics_path = job::metrics_file(config.run.dir),
      .appends = !start.checkpoint.empty(),
      .event_folder = config.report.tensorboard ? job::event_folder(config.run.dir) : std::string(),
      .first_step = start.step + 1,
      .console = {.live = live, .progress_to_output = !live && !has_terminal, .columns = columns},
      .is_quiet = is_quiet,
      .log_every = config.report.log_every,
      .total_steps = config.train.steps};
}

// The files that belong to the weights of the start, read before an older run is removed. None for
// bytes: the tokenizer and token ids in these files are those of other tokens.
std::vector<store::KeptFile> files_of_weights(const train::StartPoint& start,
                                              const data::TokenFile& data) {
  const std::string& weights = start.checkpoint.empty() ? start.initial_weights : start.checkpoint;
  if (weights.empty() || data.details().tokenizer == data::TokenizerKind::bytes) return {};
  return store::read_kept_files(store::companion_folder(weights));
}

// Begins or resumes the run in its folder, which then belongs to this job, without later steps.
void begin_in(job::RunFolder& folder, const train::StartPoint& start, const data::TokenFile& data) {
  const std::string_view tokenizer = data.tokenizer_model();
  const std::vector<store::KeptFile> kept = files_of_weights(start, data);
  if (start.checkpoint.empty()) return folder.begin(tokenizer, kept);
  const store::QuarantinedCheckpoints quarantined =
      folder.resume(start.step, tokenizer, start.unreadable, kept);
  for (const std::string& path : quarantined.paths) {
    base::log_warning("a later checkpoint was renamed to {}; remove it if it is not needed", path);
  }
  for (const std::string& reason : quarantined.left_alone) base::log_warning("{}", reason);
}

// The step that the run resumes from, or -1 if its checkpoint belongs to another run or there is
// none.
std::int64_t saved_step(comm::ProcessGroup& world, const config::Config& config,
                        const train::StartPoint& start) {
  const bool is_own = !comm::leader_text(world, "looking for the checkpoint", [&] {
                         if (start.checkpoint.empty()) return std::string();
                         const std::string own = store::checkpoints_folder(config.run.dir);
                         const std::string used = base::parent_folder(start.checkpoint);
                         return std::string(base::is_same_file(used, own) ? "own" : "");
                       }).empty();
  return is_own ? start.step : -1;
}

// False for a run that was stopped during an evaluation: the step is saved, but has no validation
// loss.
bool is_start_evaluated(comm::ProcessGroup& world, const config::Config& config,
                        const train::StartPoint& start) {
  if (config.report.eval_every == 0) return true;
  return !comm::leader_text(world, "reading metrics.jsonl", [&] {
            const std::string path = job::metrics_file(config.run.dir);
            return std::string(metrics::has_evaluation(path, start.step) ? "yes" : "");
          }).empty();
}

train::StopRequests::Options stop_options(const config::Config& config, const base::RankEnv& env,
                                          const train::FolderMonitor& folder) {
  return {.time_limit_seconds = config.run.time_limit.seconds,
          .folder = &folder,
          .acknowledges = env.rank == 0,
          .has_launcher = env.control_fd >= 0};
}

// No check and no stop file on ranks without `folder`.
train::FolderMonitor::Options monitor_options(const std::optional<job::RunFolder>& folder,
                                              const std::string& run_dir) {
  if (!folder) return {};
  return {.check = [&folder] { folder->check(); }, .stop_file = job::stop_file(run_dir)};
}

// The start table, the settings that differ from defaults, and how layout and batch were chosen.
std::string table_text(const job::StartFacts& facts, const ChosenLayout& layout) {
  const config::Config asked = layout.record.requested.value_or(facts.config);
  const std::string changed = config::changed_settings(asked);
  const std::string note = config::batch_note(asked.batch, facts.config);
  return job::start_table(facts) +
         (layout.record.is_verbose ? "\n" + job::start_details(facts) : "") +
         "\nsettings that differ from the defaults: " + (changed.empty() ? "none" : changed) +
         (layout.choice.empty() ? "" : "\n" + layout.choice) +
         (note.empty() ? "" : "\nnote: " + note);
}

// Identifies the data and checks that all ranks have the same. Ranks that are threads of one process
// share the files; on different machines, equal paths may name different files.
data::DataIdentity agree_on_data(comm::ProcessGroup& world, const config::Config& config,
                                 const data::Split& split) {
  const bool is_shared = config::strategy_of(config.layout).is_local();
  data::DataIdentity data;
  std::function<void()> read;
  if (!is_shared || world.rank() == 0) read = [&] { data = data::identify(split); };
  comm::run_long(world, "reading the data", read);
  if (is_shared) {
    return data::identity_from(comm::exchange_texts(world, data::to_text(data)).front());
  }
  comm::check_agreement(
      world, {{"the training data", data.training}, {"the validation data", data.validation}});
  return data;
}

void warn_of_cpus(const config::Config& config, const job::CpuTypes& cpus) {
  const config::MachineConfig& machine = config.machine;
  if (machine.mixed_cpus && !cpus.are_mixed) {
    base::log_warning("--mixed-cpus has no effect: all ranks have CPUs of one type, {}", cpus.text);
  }
  const std::string slow = kernels::why_bfloat16_is_widened();
  if (machine.param_dtype == config::Dtype::bfloat16 && machine.device.is_cpu() && !slow.empty()) {
    base::log_warning("--dtype bfloat16 will be slower than float32: {}", slow);
  }
}

// The flags to add to this run's command to resume it.
std::string resume_flags(const config::Config& config, bool is_unnamed) {
  return (is_unnamed ? fmt::format("--run-dir '{}' ", config.run.dir) : "") + "--resume auto";
}

// Broadcasts rank 0's run folder.
std::string agreed_run_folder(comm::ProcessGroup& world, const config::Config& config,
                              base::NewFolders& made) {
  return comm::leader_text(world, "naming the run folder",
                           [&] { return config::create_run_folder(config, made); });
}

// Collective.
train::Predictions predictions_of(const config::Config& config, job::Job& job,
                                  const ChosenLayout& layout) {
  comm::ProcessGroup& world = job.world().control();
  const parallel::MemoryPlan& memory = job.plan().memory;
  return {.memory = job::sum_of_process(config, world, memory.total()),
          .peak_memory = job::sum_of_process(config, world, memory.peak()),
          .step_seconds = layout.step_seconds};
}

}  // namespace

TrainingRun::TrainingRun(const RankContext& rank, const ChosenLayout& layout)
    : rank_(rank), layout_(layout) {}

int TrainingRun::run() {
  build_job();
  take_run_folder();
  load_start();
  prepare_saving();
  begin_run_folder();
  report_start();
  const train::RunEnd end = train();
  if (!end.stopped) return 0;
  request_requeue(end.step);
  // Under srun -K another status would end the ranks that are still saving.
  return rank_.env.in_slurm ? 0 : static_cast<int>(base::ErrorKind::interrupted);
}

void TrainingRun::build_job() {
  const config::Config& config = layout_.config;
  // Measured before the model takes the memory.
  peak_flops_ = metrics::peak_flops_of(*rank_.world, parallel::dtype_of(config.machine.dtype));
  job_.emplace(config, rank_.world);
  job_->world().close_rendezvous();  // all groups exist
  train::check_sample_memory(config, job_->plan().memory, job_->whole_model());
  comm::ProcessGroup& world = job_->world().control();
  data_ = agree_on_data(world, config, rank_.split);
  if (world.rank() == 0) warn_of_cpus(config, job_->cpus());
}

void TrainingRun::take_run_folder() {
  config::Config& config = layout_.config;
  comm::ProcessGroup& world = job_->world().control();
  names_.launch = comm::exchange_texts(world, store::new_start_id()).front();
  names_.run = store::run_key(layout_.record.provenance);
  const bool is_unnamed = config.run.dir.empty();
  base::NewFolders made;  // on rank 0
  config.run.dir = agreed_run_folder(world, config, made);
  names_.resume_flags = resume_flags(config, is_unnamed);
  comm::run_long_on_leader(world, "taking the run folder", [&] {
    folder_.emplace(config, names_.launch, layout_.record, std::move(made));
  });
  held_folder_ = job::hold_shared_folder(world, config.run.dir, names_.launch);
}

void TrainingRun::load_start() {
  start_ = train::load_start({.config = layout_.config,
                              .world = job_->world().control(),
                              .engine = job_->engine(),
                              .model = job_->whole_model(),
                              .data = data_,
                              .tokenizer = rank_.split.train.tokenized_file().tokenizer(),
                              .committed_step = base::committed_step_of_process(names_.run),
                              .are_cpus_mixed = job_->cpus().are_mixed,
                              .is_quiet = layout_.record.is_quiet});
}

void TrainingRun::prepare_saving() {
  const config::Config& config = layout_.config;
  comm::ProcessGroup& world = job_->world().control();
  comm::run_long(world, "looking at the run folder",
                 [&] { monitor_.emplace(monitor_options(folder_, config.run.dir)); });
  requests_.emplace(stop_options(config, rank_.env, *monitor_));
  reporter_.emplace(
      reporter_options(config, rank_.env, rank_.link, start_, layout_.record.is_quiet));
  clock_.emplace(job_->groups());
  state_check_.emplace(train::StateCheck::Options{.config = config,
                                                  .groups = job_->groups(),
                                                  .world = world,
                                                  .engine = job_->engine(),
                                                  .split = rank_.split,
                                                  .clock = *clock_,
                                                  .are_cpus_mixed = job_->cpus().are_mixed});
  checkpoints_.emplace(
      job_->engine(), world, *reporter_, rank_.link,
      train::CheckpointOptions{.config = config,
                               .state_check = *state_check_,
                               .run = names_.launch,
                               .data_fingerprint = data::to_text(data_),
                               .saved_step = saved_step(world, config, start_),
                               .saved_path = start_.checkpoint,
                               .resume_flags = names_.resume_flags,
                               .evaluated_data = start_.history.validation.data,
                               .run_name = names_.run,
                               .folder = *held_folder_,
                               .check_folder = [this] { folder_ ? folder_->check() : void(); }});
}

// Runs once all ranks have what they need: it removes an older run. Erasing a large one may take
// long.
void TrainingRun::begin_run_folder() {
  const config::Config& config = layout_.config;
  comm::ProcessGroup& world = job_->world().control();
  comm::run_long_on_leader(world, "preparing the run folder", [&] {
    begin_in(*folder_, start_, rank_.split.train.tokenized_file());
    rank_.link.requeue_file(job::requeue_file(config.run.dir));
    checkpoints_->latest().notify_launcher();
  });
  start_.is_evaluated = is_start_evaluated(world, config, start_);
}

void TrainingRun::report_start() {
  const job::StartFacts facts{.config = layout_.config,
                              .world = job_->world(),
                              .model = job_->whole_model(),
                              .plan = job_->plan(),
                              .cpus = job_->cpus(),
                              .split = rank_.split,
                              .data_step = start_.history.data_step};
  comm::run_long_on_leader(job_->world().control(), "writing metrics", [&] {
    nlohmann::ordered_json fields = job::start_fields(facts);
    fields[std::string(config::kProvenanceKey)] =
        nlohmann::ordered_json::parse(layout_.record.provenance);
    if (!start_.initial_weights.empty() && !layout_.record.is_quiet) {
      base::log_info("weights from {}, new optimizer", start_.initial_weights);
    }
    reporter_->report(metrics::StartEvent{table_text(facts, layout_), fields});
    if (start_.checkpoint.empty()) return;
    reporter_->report(metrics::ResumeEvent{
        .step = start_.step, .path = start_.checkpoint, .seconds = start_.seconds});
  });
}

// If training fails and no launcher restarts it or reports the failure, rank 0 prints how to
// continue.
train::RunEnd TrainingRun::train() {
  train::TrainingLoop loop({.config = layout_.config,
                            .groups = job_->groups(),
                            .world = job_->world().control(),
                            .engine = job_->engine(),
                            .model = job_->whole_model(),
                            .predicted = predictions_of(layout_.config, *job_, layout_),
                            .peak_flops = peak_flops_,
                            .split = rank_.split,
                            .reporter = *reporter_,
                            .link = rank_.link,
                            .clock = *clock_,
                            .state_check = *state_check_,
                            .checkpoints = *checkpoints_,
                            .requests = *requests_,
                            .check_folder = [this] { folder_ ? folder_->check() : void(); },
                            .folder = *monitor_,
                            .tokenizer = rank_.tokenizer},
                           start_);
  rank_.phase.reset();
  try {
    const train::RunEnd end = loop.run();
    rank_.phase.emplace(rank_.link.activity(), "ending");
    return end;
  } catch (...) {
    rank_.phase.emplace(rank_.link.activity(), "ending");
    checkpoints_->latest().notify_failure();
    const std::string advice = checkpoints_->latest().how_to_continue();
    const bool is_unattended = rank_.env.control_fd < 0 && rank_.env.max_restarts == 0;
    if (is_unattended && !advice.empty()) reporter_->note("dtrain: " + advice);
    throw;
  }
}

void TrainingRun::request_requeue(std::int64_t step) {
  comm::run_long_on_leader(job_->world().control(), "asking for a requeue", [&] {
    // Takes a signal that another rank saw first.
    (void)requests_->wants_stop();
    std::string reason = requests_->reason(rank_.link.stop_signal());
    if (reason.empty()) reason = "another rank";
    folder_->request_requeue(step, reason);
    reporter_->report(metrics::StopEvent{
        .step = step,
        .reason = reason,
        .checkpoint = checkpoints_->latest().path(),
        .message = fmt::format("stopped after step {} by {} and saved; to continue, rerun with {}",
                               step, reason, names_.resume_flags)});
  });
}

}  // namespace dtrain::commands
