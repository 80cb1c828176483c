#include "dtrain/train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/trace.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/train/model_file.h"
#include "dtrain/train/text_sampler.h"

namespace dtrain::train {
namespace {

constexpr const char* kSaving = "saving";

// The votes that ranks cast in a step.
enum Vote : std::size_t { kStop, kSave, kBusy };

// Lets dtrun query the calls of these groups, from another thread, during its lifetime. A rank that
// fails sends them unasked: by the time dtrun finds the rank that the others waited for, they have
// ended.
class CallAnswers {
 public:
  CallAnswers(base::LauncherLink& link, const mesh::MeshGroups& groups) : link_(link) {
    link_.set_call_report([&groups] { return groups.call_lines(); });
  }
  ~CallAnswers() {
    if (std::uncaught_exceptions() > exceptions_) link_.send_last_records();
    link_.set_call_report({});
  }
  CallAnswers(const CallAnswers&) = delete;
  CallAnswers& operator=(const CallAnswers&) = delete;

 private:
  base::LauncherLink& link_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

Trainer::Trainer(const TrainParts& parts, const StartPoint& start)
    : parts_(parts),
      loader_(parts.split.train, {.microbatch = parts.config.batch.microbatch,
                                  .deal = parts.engine.deal(),
                                  .seed = parts.config.train.seed,
                                  .start_position = start.samples}),
      schedule_(optim::schedule_of(parts.config.train)),
      data_step_(start.history.data_step),
      step_(start.step),
      meter_(parts_, start.tokens),
      validation_(parts_, start),
      step_guard_(parts_, start.history.spikes),
      state_guard_(parts_),
      profiler_(parts_) {}

RunEnd Trainer::run() {
  parts_.engine.set_activity(&parts_.link.activity());
  const CallAnswers answers(parts_.link, parts_.groups);
  try {
    return run_steps();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const base::Error*>(&error);
    const bool is_own = known == nullptr || known->kind() != base::ErrorKind::comm;
    if (is_own) parts_.link.ignore_abort();
    const base::LongPhase writing(parts_.link.activity(), kWritingMetrics);
    parts_.reporter.failure(step_, error.what());
    throw;
  }
}

RunEnd Trainer::run_steps() {
  const std::int64_t sample_every = parts_.config.report.sample_every;
  meter_.begin();
  bool stops = validation_.is_owed() && !evaluate();
  if (validation_.has_new_best()) save_after_step({});
  while (!stops && step_ < parts_.config.train.steps && !validation_.is_out_of_patience()) {
    profile();
    const parallel::Votes votes = make_step();
    stops = stops_after(votes[kStop]);
    if (stops) break;
    save_after_step(votes);
    if (sample_every > 0 && step_ % sample_every == 0) write_sample();
  }
  const base::LongPhase saving(parts_.link.activity(), kSaving);
  if (stops) {
    if (parts_.checkpoints.lacks(step_)) check_state();
    parts_.checkpoints.save_now(save_point());
  }
  profiler_.finish(step_);
  if (!stops) save_final();
  return {.stopped = stops, .step = step_};
}

parallel::Votes Trainer::make_step() {
  const base::Span span("step", base::TracePart::step, {"step", step_ + 1});
  const Timed timed(meter_.spent().steps);
  const parallel::StepResult result = train_step();
  parts_.link.activity().finish_step(++step_);
  meter_.finish_step(
      {.step = step_, .learning_rate = schedule_.rate(step_ - 1), .samples = loader_.position()},
      result);
  return result.loss.votes;
}

void Trainer::profile() {
  const base::LongPhase profiling(parts_.link.activity(), "profiling");
  if (profiler_.before_step(meter_.steps_done(), step_)) meter_.restart_step();
}

parallel::StepResult Trainer::train_step() {
  std::vector<data::Batch> microbatches;  // this rank's part of the global batch
  {
    const base::Span span("read data", base::TracePart::data);
    const base::LongPhase reading(parts_.link.activity(), "reading the data");
    microbatches = loader_.next();
  }
  parts_.folder.rethrow_failure();
  const config::Config& config = parts_.config;
  const SaveVotes save = parts_.checkpoints.votes(parts_.requests.take_save());
  const parallel::StepLimits limits = step_guard_.begin_step(step_);
  parallel::StepResult result;
  metrics::begin_step(step_ + 1);
  try {
    result = parts_.engine.train_step(
        microbatches, {.max_norm = config.train.grad_clip,
                       .learning_rate = schedule_.rate(step_),
                       .compresses = step_ >= config.machine.compress_warmup,
                       .votes = {parts_.requests.wants_stop(), save.save, save.busy},
                       .limits = limits});
  } catch (const base::Error& error) {
    // A loss scale that cannot become smaller ends the run like other numbers.
    if (error.kind() != base::ErrorKind::numerics) throw;
    fail({error.what(), advice_on_numbers(parts_.engine)});
  }
  metrics::end_step(step_ + 1);
  if (const auto bad = step_guard_.end_step(step_ + 1, result)) fail(*bad);
  return result;
}

// Whoever asks to stop may have little time: an evaluation that is due is left to the next start.
bool Trainer::stops_after(bool stop_requested) {
  if (validation_.is_due(step_)) return stop_requested || !evaluate();
  return stop_requested && step_ < parts_.config.train.steps;
}

// False if somebody wants to stop: then nothing is known.
bool Trainer::evaluate() {
  const base::Span span("evaluation", base::TracePart::evaluation);
  const base::LongPhase evaluating(parts_.link.activity(), "evaluating");
  const Timed timed(meter_.spent().evaluation);
  parts_.reporter.evaluating(step_);
  state_guard_.make_copies_equal(step_);
  // A time limit that is shorter than an evaluation must not stop every start in the same one.
  const auto loss = validation_.evaluate(step_, [this, &requests = parts_.requests] {
    return meter_.steps_done() > 0 ? requests.wants_stop() : requests.wants_stop_now();
  });
  meter_.restart_step();
  if (!loss) return false;
  if (!std::isfinite(*loss)) {
    fail({fmt::format("after step {}: the validation loss is {}, so nothing of it was saved", step_,
                      metrics::format_number(*loss)),
          advice_on_numbers(parts_.engine)});
  }
  state_guard_.note_evaluated(step_);
  return true;
}

// Collective.
void Trainer::write_sample() {
  const base::Span span("sample", base::TracePart::other);
  const base::LongPhase sampling(parts_.link.activity(), "writing a sample");
  state_guard_.make_copies_equal(step_);
  meter_.begin_unpredicted();
  parts_.reporter.sample(step_, sample_text(parts_));
  meter_.end_unpredicted();
}

// The checkpoint of a new lowest validation loss is made at its step, whatever it takes.
void Trainer::save_after_step(const parallel::Votes& votes) {
  const base::Span span("checkpoint", base::TracePart::checkpoint);
  const base::LongPhase saving(parts_.link.activity(), kSaving);
  const Timed timed(meter_.spent().saving);
  Checkpointer& checkpoints = parts_.checkpoints;
  const bool is_due =
      validation_.take_new_best()
          ? checkpoints.after_best_step(step_)
          : checkpoints.after_step(step_, {.save = votes[kSave], .busy = votes[kBusy]});
  if (!is_due) return;
  check_state();
  checkpoints.save(save_point());
}

void Trainer::check_state() {
  const auto begin = base::Clock::now();
  if (const auto bad = state_guard_.find_bad(step_)) fail(*bad);
  meter_.exclude_since(begin);
}

checkpoint::SavePoint Trainer::save_point() const {
  const RunHistory history{.data_step = data_step_,
                           .validation = validation_.record(),
                           .spikes = step_guard_.statistics()};
  return {.step = step_,
          .samples = loader_.position(),
          .tokens = meter_.tokens(),
          .history = to_text(history),
          .best_step = parts_.config.checkpoint.keep_best ? history.validation.best_step : -1};
}

void Trainer::save_final() {
  std::string error;
  {
    const Timed timed(meter_.spent().saving);
    check_state();
    error = parts_.checkpoints.save_last(save_point());
    write_final_model(parts_);
  }
  metrics::Summary summary = meter_.summary(step_);
  validation_.add_to(summary);
  summary.skipped_updates = step_guard_.num_skipped();
  summary.failed_checkpoints = parts_.checkpoints.num_failures();
  parts_.reporter.end(summary);
  if (error.empty()) return parts_.reporter.finish();
  base::fail(base::ErrorKind::checkpoint,
             "{} is written, but the checkpoint of step {}, the last one, failed: {}",
             summary.model_path, step_, error);
}

// Ends the run because of its numbers, on all ranks after the same step.
void Trainer::fail(const BadNumbers& bad) {
  const base::LongPhase saving(parts_.link.activity(), kSaving);
  parts_.checkpoints.finish();  // what was good when its save began
  const std::string& newest = parts_.checkpoints.newest();
  base::fail(base::ErrorKind::numerics, "{}; {}; {}", bad.found,
             newest.empty() ? "there is no checkpoint of an earlier step"
                            : "the last good checkpoint is " + newest,
             bad.advice);
}

}  // namespace dtrain::train
