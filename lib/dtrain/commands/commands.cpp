#include "dtrain/commands/commands.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/commands/internal/layout_choice.h"
#include "dtrain/commands/internal/verifier.h"
#include "dtrain/config/resolve/notices.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/data/split.h"
#include "dtrain/job/job.h"
#include "dtrain/job/ranks.h"
#include "dtrain/job/run_folder.h"
#include "dtrain/job/start_table.h"
#include "dtrain/kernels/product.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/checkpointer.h"
#include "dtrain/train/start_point.h"
#include "dtrain/train/text_sampler.h"
#include "dtrain/train/trainer.h"

namespace dtrain::commands {
namespace {

namespace store = checkpoint::store;

metrics::Reporter make_reporter(const config::Config& config, const base::RankEnv& env,
                                const base::LauncherLink& link, const train::StartPoint& start,
                                bool is_quiet) {
  const bool has_terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool live = env.launcher_terminal || (has_terminal && ::isatty(STDERR_FILENO) == 1);
  const auto columns = [&link, told = env.terminal_columns] {
    return link.columns() > 0 ? link.columns() : told;
  };
  return metrics::Reporter(
      {.writes = env.rank == 0,
       .metrics_path = job::RunFolder::metrics_file(config.run.dir),
       .appends = !start.checkpoint.empty(),
       .event_folder =
           config.report.tensorboard ? job::RunFolder::event_folder(config.run.dir) : std::string(),
       .first_step = start.step + 1,
       .console = {.live = live, .progress_to_output = !live && !has_terminal, .columns = columns},
       .is_quiet = is_quiet,
       .log_every = config.report.log_every,
       .total_steps = config.train.steps});
}

// A name for this start of the job that no other has; rank 0's.
std::string job_name(comm::ProcessGroup& world) {
  return comm::exchange_texts(world, checkpoint::store::new_start_id()).front();
}

// Begins a job in the run folder: makes the folder this job's and cuts it back to the start.
void begin_in(job::RunFolder& folder, const train::StartPoint& start, std::string_view tokenizer) {
  if (start.checkpoint.empty()) return folder.begin(tokenizer);
  const checkpoint::store::SetAside aside = folder.go_on(start.step, tokenizer, start.unreadable);
  for (const std::string& path : aside.paths) {
    base::log_warning("a later checkpoint was set aside as {}; remove it if it is not needed",
                      path);
  }
  for (const std::string& why : aside.left_alone) base::log_warning("{}", why);
}

// The step of the start if this run has a checkpoint of it, else -1. Another run's is not saved
// here.
std::int64_t saved_step(comm::ProcessGroup& world, const config::Config& config,
                        const train::StartPoint& start) {
  const bool is_own = !comm::leader_text(world, "looking for the checkpoint", [&] {
                         if (start.checkpoint.empty()) return std::string();
                         const std::string own =
                             checkpoint::store::checkpoints_folder(config.run.dir);
                         const std::string there = base::parent_folder(start.checkpoint);
                         return std::string(base::is_same_file(there, own) ? "own" : "");
                       }).empty();
  return is_own ? start.step : -1;
}

// A run that was stopped while it evaluated has saved the step, but has no loss of it.
bool is_evaluated(comm::ProcessGroup& world, const config::Config& config,
                  const train::StartPoint& start) {
  if (config.report.eval_every == 0) return true;
  return !comm::leader_text(world, "reading metrics.jsonl", [&] {
            const std::string path = job::RunFolder::metrics_file(config.run.dir);
            return std::string(metrics::has_evaluation(path, start.step) ? "yes" : "");
          }).empty();
}

train::StopRequests::Options stop_options(const config::Config& config, const base::RankEnv& env,
                                          const train::FolderMonitor& folder) {
  return {.time_limit_seconds = config.run.time_limit.seconds,
          .folder = &folder,
          .answers = env.rank == 0,
          .has_launcher = env.control_fd >= 0};
}

// folder: rank 0's.
train::FolderMonitor::Options monitor_options(const std::optional<job::RunFolder>& folder,
                                              const std::string& run_dir) {
  if (!folder) return {};
  return {.check = [&folder] { folder->check(); }, .stop_file = job::RunFolder::stop_file(run_dir)};
}

// The table, the settings that somebody has chosen, and what follows from the ranks.
std::string table_text(const job::StartFacts& facts, const SettledStart& settled) {
  const config::Config asked = settled.record.asked.value_or(facts.config);
  const std::string changed = config::changed_settings(asked);
  const std::string note = config::batch_note(asked.batch, facts.config);
  return job::start_table(facts) +
         (settled.record.is_verbose ? "\n" + job::start_details(facts) : "") +
         "\nsettings that differ from the defaults: " + (changed.empty() ? "none" : changed) +
         (settled.choice.empty() ? "" : "\n" + settled.choice) +
         (note.empty() ? "" : "\nnote: " + note);
}

void tell_start(comm::ProcessGroup& world, metrics::Reporter& reporter, job::StartFacts facts,
                const SettledStart& settled, const train::StartPoint& start) {
  facts.data_step = start.history.data_step;
  comm::run_long_on_leader(world, "writing metrics", [&] {
    nlohmann::ordered_json fields = job::start_fields(facts);
    fields[std::string(config::kProvenanceKey)] =
        nlohmann::ordered_json::parse(settled.record.provenance);
    if (!start.initial_weights.empty() && !settled.record.is_quiet) {
      base::log_info("weights from {}, new optimizer", start.initial_weights);
    }
    reporter.start(table_text(facts, settled), fields);
    if (start.checkpoint.empty()) return;
    reporter.resume({.step = start.step, .path = start.checkpoint, .seconds = start.seconds});
  });
}

// Ranks that are threads of one process have read the same bytes when one of them has. To others,
// on different machines, equal paths may mean different files.
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

// Requests a requeue of a stopped run. Rank 0.
metrics::StopRecord ask_for_requeue(job::RunFolder& folder, train::StopRequests& requests,
                                    const base::LauncherLink& link,
                                    const train::Checkpointer& checkpoints, std::int64_t step,
                                    std::string_view flags) {
  (void)requests.wants_stop();  // a signal that another rank saw first may have come here since
  std::string reason = requests.reason(link.stop_signal());
  if (reason.empty()) reason = "another rank";
  folder.ask_for_requeue(step, reason);
  return {
      .step = step,
      .reason = reason,
      .checkpoint = checkpoints.newest(),
      .message = fmt::format("stopped after step {} by {} and saved; to continue, rerun with {}",
                             step, reason, flags)};
}

// Runs the training. If it fails and no launcher restarts it or reports the failure, rank 0 prints
// how to continue.
train::RunEnd run_or_advise(train::Trainer& trainer, const train::Checkpointer& checkpoints,
                            metrics::Reporter& reporter, const base::RankEnv& env,
                            std::optional<base::LongPhase>& phase, base::LauncherLink& link) {
  phase.reset();
  try {
    const train::RunEnd end = trainer.run();
    phase.emplace(link.activity(), "ending");
    return end;
  } catch (...) {
    phase.emplace(link.activity(), "ending");
    checkpoints.notify_failure();
    const std::string advice = checkpoints.how_to_continue();
    const bool is_left_alone = env.control_fd < 0 && env.max_restarts == 0;
    if (is_left_alone && !advice.empty()) reporter.note("dtrain: " + advice);
    throw;
  }
}

// The settings of a restart by the launcher, which continues from what rank 0 finds of the earlier
// attempt; empty otherwise.
std::optional<config::Config> after_earlier_attempt(comm::ProcessGroup& world,
                                                    const config::Config& config,
                                                    const config::StartRecord& record,
                                                    const base::RankEnv& env) {
  constexpr std::string_view kSaved = "saved ";
  constexpr std::string_view kBegun = "begun ";
  if (env.restart_count == 0) return std::nullopt;
  const std::string found = comm::leader_text(world, "looking for an earlier attempt", [&] {
    const auto earlier = store::find_earlier_attempt(config, record.provenance);
    if (!earlier) return std::string();
    return std::string(earlier->has_checkpoint ? kSaved : kBegun) + earlier->run_dir;
  });
  if (found.empty()) return std::nullopt;
  return store::going_on_with(config, {.run_dir = found.substr(kSaved.size()),
                                       .has_checkpoint = found.starts_with(kSaved)});
}

// Broadcasts rank 0's run folder.
std::string agreed_run_folder(comm::ProcessGroup& world, const config::Config& config,
                              base::NewFolders& made) {
  return comm::leader_text(world, "naming the run folder",
                           [&] { return config::named_run_folder(config, made); });
}

// What a rank has before it builds anything.
struct RankParts {
  const base::RankEnv& env;
  base::LauncherLink& link;
  std::optional<base::LongPhase>& phase;  ///< "the start"; later "ending", destructors included
  const data::Split& split;
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::shared_ptr<comm::World> world;
};

// Collective: every rank of the job.
train::Predictions predictions_of(const config::Config& config, job::Job& job,
                                  const SettledStart& settled) {
  comm::ProcessGroup& world = job.world().control();
  const parallel::MemoryPlan& memory = job.plan().memory;
  return {.memory = job::sum_of_process(config, world, memory.total()),
          .peak_memory = job::sum_of_process(config, world, memory.peak()),
          .step_seconds = settled.step_seconds};
}

int train_settled(const SettledStart& settled, const RankParts& parts) {
  config::Config config = settled.config;
  const auto& [env, link, phase, split, tokenizer, ranks] = parts;
  // Destroyed last: a signal while memory is freed must not change the run's exit status.
  std::optional<train::StopRequests> requests;
  // Before the model takes the memory.
  const auto peak = metrics::peak_flops_of(*ranks, parallel::dtype_of(config.machine.dtype));
  job::Job job(config, ranks);
  job.world().close_rendezvous();  // all groups are made
  train::check_sample_memory(config, job.plan().memory, job.whole_model());
  comm::ProcessGroup& world = job.world().control();
  const data::DataIdentity data = agree_on_data(world, config, split);
  if (world.rank() == 0) warn_of_cpus(config, job.cpus());
  const std::string run = job_name(world);
  const std::string lineage = store::name_of_run(settled.record.provenance);
  const bool is_unnamed = config.run.dir.empty();
  base::NewFolders made;  // rank 0's
  config.run.dir = agreed_run_folder(world, config, made);
  std::optional<job::RunFolder> folder;  // rank 0's
  comm::run_long_on_leader(world, "taking the run folder",
                           [&] { folder.emplace(config, run, settled.record, std::move(made)); });
  const auto held = job::hold_shared_folder(world, config.run.dir, run);
  const model::Model& model = job.whole_model();
  train::StartPoint start = train::load_start(
      {config, world, job.engine(), model, data, split.train.tokenized_file().tokenizer(),
       base::committed_step_of_process(lineage), job.cpus().are_mixed, settled.record.is_quiet});
  std::optional<train::FolderMonitor> monitor;
  comm::run_long(world, "looking at the run folder",
                 [&] { monitor.emplace(monitor_options(folder, config.run.dir)); });
  requests.emplace(stop_options(config, env, *monitor));
  const std::string flags = resume_flags(config, is_unnamed);
  metrics::Reporter reporter = make_reporter(config, env, link, start, settled.record.is_quiet);
  const auto check_folder = [&] { folder ? folder->check() : void(); };
  train::Checkpointer checkpoints(
      job.engine(), world, reporter, link,
      {config, run, data::to_text(data), saved_step(world, config, start), start.checkpoint, flags,
       start.history.validation.data, lineage, *held, check_folder});
  // Last, when all ranks have what they need: an older run is gone afterwards. To erase a large one
  // may take long.
  comm::run_long_on_leader(world, "preparing the run folder", [&] {
    begin_in(*folder, start, split.train.tokenized_file().tokenizer_model());
    link.requeue_file(job::RunFolder::requeue_file(config.run.dir));
    checkpoints.notify_start();
  });
  start.is_evaluated = is_evaluated(world, config, start);
  tell_start(world, reporter, {config, job.world(), model, job.plan(), job.cpus(), split}, settled,
             start);
  train::Trainer trainer(
      {config, job.groups(), world, job.engine(), model, predictions_of(config, job, settled), peak,
       job.cpus().are_mixed, split, reporter, link, checkpoints, *requests, check_folder, *monitor,
       tokenizer},
      start);
  const train::RunEnd end = run_or_advise(trainer, checkpoints, reporter, env, phase, link);
  if (!end.stopped) return 0;
  comm::run_long_on_leader(world, "asking for a requeue", [&] {
    reporter.stop(ask_for_requeue(*folder, *requests, link, checkpoints, end.step, flags));
  });
  // Within srun -K another status would end the ranks that are still saving.
  return env.in_slurm ? 0 : static_cast<int>(base::ErrorKind::interrupted);
}

int train_rank(const config::Config& config, const config::StartRecord& record,
               const base::RankEnv& env, const job::JoinWorld& join) {
  base::LauncherLink link(env.control_fd);
  std::optional<base::LongPhase> phase(std::in_place, link.activity(), "the start");
  const data::Split split = data::open_split(data::split_options(config));
  const auto tokenizer = train::sample_tokenizer(config, split);
  const std::shared_ptr<comm::World> world = join();
  comm::check_agreement(world->control(), {{"the build", build_text(record)}});
  const auto later = after_earlier_attempt(world->control(), config, record, env);
  SettledStart settled = settle_layout(later.value_or(config), record, *world, env);
  settle_microbatch(settled, later ? Attempt::later : Attempt::first, *world);
  return train_settled(settled, {env, link, phase, split, tokenizer, world});
}

void verify_rank(const config::Config& config, const base::RankEnv& env, const job::JoinWorld& join,
                 const Output& output) {
  const base::LauncherLink link(env.control_fd);
  const Verification result = verify(config, join());
  if (env.rank == 0) {
    base::request_plain_output();
    output(result.to_json(config) + "\n");
  }
  if (result.passed()) return;
  const auto worst = std::max_element(
      result.checks.begin(), result.checks.end(),
      [](const Check& a, const Check& b) { return a.error / a.tolerance < b.error / b.tolerance; });
  base::fail(base::ErrorKind::numerics, "{}: {} differs by {:.3g}, beyond the tolerance {:.3g}",
             config.verify.golden, worst->name, worst->error, worst->tolerance);
}

}  // namespace

std::string build_text(const config::StartRecord& record) {
  const auto program = nlohmann::json::parse(record.provenance);
  return fmt::format("dtrain {} (commit {}), LibTorch {}", program.value("version", "?"),
                     program.value("commit", "?"), TORCH_VERSION);
}

int train(const config::Config& config, const config::StartRecord& record) {
  return job::run_ranks(config, [&](const base::RankEnv& env, const job::JoinWorld& join) {
    return train_rank(config, record, env, join);
  });
}

void verify(const config::Config& config, const Output& output) {
  (void)job::run_ranks(config, [&](const base::RankEnv& env, const job::JoinWorld& join) {
    verify_rank(config, env, join, output);
    return 0;
  });
}

}  // namespace dtrain::commands
