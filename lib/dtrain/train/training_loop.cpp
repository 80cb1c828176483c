#include "dtrain/train/training_loop.h"

#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <string>
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

// The votes that ranks cast in a step.
enum Vote : std::size_t { kStop, kSave, kBusy };

// During its lifetime, dtrun can query the calls of these groups, from another thread. A failing rank
// sends them without a query: it has ended by the time dtrun looks for the rank that blocked it.
class CallAnswers {
 public:
  CallAnswers(base::LauncherLink& link, const mesh::MeshGroups& groups) : link_(link) {
    link_.activity().set_call_report([&groups] { return groups.call_lines(); });
  }
  ~CallAnswers() {
    if (std::uncaught_exceptions() > exceptions_) link_.send_last_records();
    link_.activity().set_call_report({});
  }
  CallAnswers(const CallAnswers&) = delete;
  CallAnswers& operator=(const CallAnswers&) = delete;

 private:
  base::LauncherLink& link_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

TrainingLoop::TrainingLoop(const TrainContext& context, const StartPoint& start)
    : context_(context),
      loader_(context.split.train, {.microbatch = context.config.batch.microbatch,
                                    .assignment = context.engine.microbatch_assignment(),
                                    .seed = context.config.train.seed,
                                    .start_position = start.samples}),
      schedule_(optim::schedule_of(context.config.train)),
      data_step_(start.history.data_step),
      step_(start.step),
      metrics_(context_, start.tokens),
      validation_(context_, start),
      update_guard_(context_, start.history),
      profiler_(context_) {}

RunEnd TrainingLoop::run() {
  context_.engine.set_activity(&context_.link.activity());
  const CallAnswers answers(context_.link, context_.groups);
  try {
    return run_steps();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const base::Error*>(&error);
    const bool is_own = known == nullptr || known->kind() != base::ErrorKind::comm;
    if (is_own) context_.link.ignore_abort();
    const base::LongPhase writing(context_.link.activity(), kWritingMetrics);
    context_.reporter.report_failure({.step = step_, .message = error.what()});
    throw;
  }
}

RunEnd TrainingLoop::run_steps() {
  const std::int64_t sample_every = context_.config.report.sample_every;
  metrics_.begin();
  bool stops = validation_.is_pending() && !evaluate();
  if (validation_.has_new_best()) save_after_step({});
  while (!stops && step_ < context_.config.train.steps && !validation_.is_out_of_patience()) {
    profile();
    const parallel::Votes votes = make_step();
    stops = stops_after(votes[kStop]);
    if (stops) break;
    save_after_step(votes);
    if (sample_every > 0 && step_ % sample_every == 0) write_sample();
  }
  const base::LongPhase saving(context_.link.activity(), kSavingPhase);
  if (stops) context_.checkpoints.save_and_stop(save_point());
  profiler_.finish(step_);
  if (!stops) finish();
  return {.stopped = stops, .step = step_};
}

parallel::Votes TrainingLoop::make_step() {
  const base::Span span("step", base::TracePart::step, {"step", step_ + 1});
  const ScopedTimer timer(metrics_.spent().steps);
  const parallel::StepResult result = train_step();
  context_.link.activity().finish_step(++step_);
  metrics_.finish_step(
      {.step = step_, .learning_rate = schedule_.rate(step_ - 1), .samples = loader_.position()},
      result);
  return result.loss.votes;
}

void TrainingLoop::profile() {
  const base::LongPhase profiling(context_.link.activity(), "profiling");
  if (profiler_.before_step(metrics_.steps_done(), step_)) context_.clock.restart();
}

parallel::StepResult TrainingLoop::train_step() {
  std::vector<data::Batch> microbatches;  // this rank's part of the global batch
  {
    const base::Span span("read data", base::TracePart::data);
    const base::LongPhase reading(context_.link.activity(), "reading the data");
    microbatches = loader_.next();
  }
  context_.folder.rethrow_failure();
  const config::Config& config = context_.config;
  const SaveVotes save = context_.checkpoints.votes(context_.requests.take_save_request());
  const parallel::StepLimits limits = update_guard_.begin_step(step_);
  parallel::StepResult result;
  metrics::begin_step(step_ + 1);
  try {
    result = context_.engine.train_step(
        microbatches, {.max_norm = config.train.grad_clip,
                       .learning_rate = schedule_.rate(step_),
                       .compresses = step_ >= config.machine.compress_warmup,
                       .votes = {context_.requests.wants_stop(), save.save, save.busy},
                       .limits = limits});
  } catch (const base::Error& error) {
    // A loss scale that cannot become smaller stops the run like a loss that is not finite.
    if (error.kind() != base::ErrorKind::numerics) throw;
    context_.checkpoints.fail({error.what(), advice_on_nonfinite(context_.engine)});
  }
  metrics::end_step(step_ + 1);
  if (const auto failure = update_guard_.end_step(step_ + 1, result)) {
    context_.checkpoints.fail(*failure);
  }
  return result;
}

// A stop may be urgent: a due evaluation is left to the next launch.
bool TrainingLoop::stops_after(bool stop_requested) {
  if (validation_.is_due(step_)) return stop_requested || !evaluate();
  return stop_requested && step_ < context_.config.train.steps;
}

// Returns false if a stop was requested: the evaluation has no result then.
bool TrainingLoop::evaluate() {
  const base::Span span("evaluation", base::TracePart::evaluation);
  const base::LongPhase evaluating(context_.link.activity(), "evaluating");
  const ScopedTimer timer(metrics_.spent().evaluation);
  context_.reporter.report(metrics::EvaluationBegin{step_});
  context_.state_check.make_copies_equal(step_);
  // A time limit shorter than an evaluation must not stop every launch in the same evaluation.
  const auto loss = validation_.evaluate(step_, [this, &requests = context_.requests] {
    return metrics_.steps_done() > 0 ? requests.wants_stop() : requests.wants_stop_now();
  });
  context_.clock.restart();
  if (!loss) return false;
  if (const auto failure = context_.state_check.note_evaluated(step_, *loss)) {
    context_.checkpoints.fail(*failure);
  }
  return true;
}

void TrainingLoop::write_sample() {
  const base::Span span("sample", base::TracePart::other);
  const base::LongPhase sampling(context_.link.activity(), "writing a sample");
  context_.state_check.make_copies_equal(step_);
  metrics_.begin_unpredicted();
  context_.reporter.report(
      metrics::SampleEvent{.step = step_, .text = metrics::readable_text(sample_text(context_))});
  metrics_.end_unpredicted();
}

// A step with a new lowest validation loss is always saved.
void TrainingLoop::save_after_step(const parallel::Votes& votes) {
  const base::Span span("checkpoint", base::TracePart::checkpoint);
  const base::LongPhase saving(context_.link.activity(), kSavingPhase);
  const ScopedTimer timer(metrics_.spent().saving);
  Checkpointer& checkpoints = context_.checkpoints;
  const bool is_due =
      validation_.take_new_best()
          ? checkpoints.after_best_step(step_)
          : checkpoints.after_step(step_, {.save = votes[kSave], .busy = votes[kBusy]});
  if (is_due) checkpoints.save(save_point());
}

checkpoint::SavePoint TrainingLoop::save_point() const {
  const RunHistory history{.data_step = data_step_,
                           .validation = validation_.record(),
                           .spikes = update_guard_.statistics(),
                           .skipped_in_a_row = update_guard_.skipped_in_a_row()};
  return {.step = step_,
          .samples = loader_.position(),
          .tokens = metrics_.tokens(),
          .history = to_text(history),
          .best_step = context_.config.checkpoint.keep_best ? history.validation.best_step : -1};
}

void TrainingLoop::finish() {
  std::string error;
  {
    const ScopedTimer timer(metrics_.spent().saving);
    error = context_.checkpoints.save_last(save_point());
    write_final_model(context_);
  }
  metrics::RunSummary summary = metrics_.summary(step_);
  validation_.add_to(summary);
  summary.skipped_updates = update_guard_.num_skipped();
  summary.failed_checkpoints = context_.checkpoints.num_failures();
  context_.reporter.report(summary);
  if (error.empty()) return context_.reporter.finish();
  base::fail(base::ErrorKind::checkpoint,
             "{} is written, but the checkpoint of step {}, the last one, failed: {}",
             summary.model_path, step_, error);
}

}  // namespace dtrain::train
