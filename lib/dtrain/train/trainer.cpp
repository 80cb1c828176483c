#include "dtrain/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/trace.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/conditions.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/train/call_answers.h"
#include "dtrain/train/final_model.h"
#include "dtrain/train/text_sampler.h"

namespace dtrain::train {
namespace {

constexpr const char* kSaving = "saving";

// Adds the time for which it lives to `seconds`.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { seconds_ += base::seconds_since(begin_); }

 private:
  double& seconds_;
  base::Clock::time_point begin_ = base::Clock::now();
};

// The votes that ranks cast in a step.
enum Vote : std::size_t { kStop, kSave, kBusy };

data::LoaderOptions loader_options(const Trainer::Parts& parts, const StartPoint& start) {
  return {.microbatch = parts.config.batch.microbatch,
          .deal = parts.engine.deal(),
          .seed = parts.config.train.seed,
          .start_position = start.samples};
}

// True at each step of an interval; 0: there is none.
bool is_multiple(std::int64_t step, std::int64_t every) {
  return every > 0 && step > 0 && step % every == 0;
}

bool is_due(std::int64_t step, const config::Config& config) {
  return step >= config.train.steps || is_multiple(step, config.report.eval_every);
}

data::EvaluationSequences validation_of(const config::Config& config, const data::Split& split) {
  return {split.validation, config.report.eval_sequences.count};
}

// A NaN's sign means nothing, and depends on the processor.
std::string shown(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

std::string found_in(std::int64_t step, const parallel::StepResult& result) {
  return fmt::format("step {}: loss {}, gradient norm {}", step, shown(result.loss.mean()),
                     shown(result.grad_norm));
}

// The name of a tensor of the run's state that is not finite on some rank; empty: all are.
std::string bad_tensor(const parallel::StepEngine& engine, comm::ProcessGroup& world) {
  const std::string own = checkpoint::first_not_finite(owned_part(engine.state()));
  for (const std::string& name : comm::exchange_texts(world, own)) {
    if (!name.empty()) return name;
  }
  return {};
}

}  // namespace

Trainer::Trainer(const Parts& parts, const StartPoint& start)
    : config_(parts.config),
      groups_(parts.groups),
      world_(parts.world),
      engine_(parts.engine),
      model_(parts.model),
      are_cpus_mixed_(parts.are_cpus_mixed),
      reporter_(parts.reporter),
      link_(parts.link),
      checkpoints_(parts.checkpoints),
      requests_(parts.requests),
      check_folder_(parts.check_folder),
      folder_(parts.folder),
      tokenizer_(parts.tokenizer),
      tokenizer_identity_(parts.split.train.tokenized_file().tokenizer()),
      validation_(validation_of(config_, parts.split)),
      units_(data::units_of(parts.split.validation.file())),
      probe_(parts.split.train.first(),
             config_.batch.microbatch * groups_.along(mesh::Axis::dp).size()),
      loader_(parts.split.train, loader_options(parts, start)),
      schedule_(optim::schedule_of(config_.train)),
      step_(start.step),
      tokens_(start.tokens),
      start_tokens_(start.tokens),
      peak_({.measured = parts.peak_flops,
             .tensors = at::TensorOptions(device()).dtype(engine_.precision().compute),
             .num_ranks = world_.size()}),
      predicted_(parts.predicted),
      owes_evaluation_(validation_.size() > 0 && is_due(step_, config_) &&
                       (step_ >= config_.train.steps || !start.is_evaluated)),
      validation_record_(start.history.validation),
      spikes_(config_.train.spike_threshold, start.history.spikes),
      profiler_(config_, groups_, world_, device(), reporter_) {}

RunEnd Trainer::run() {
  engine_.set_activity(&link_.activity());
  const CallAnswers answers(link_, groups_);
  try {
    return run_steps();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const base::Error*>(&error);
    const bool is_own = known == nullptr || known->kind() != base::ErrorKind::comm;
    if (is_own) link_.disobey();
    const base::LongPhase writing(link_.activity(), kWritingMetrics);
    reporter_.failure(step_, error.what());
    throw;
  }
}

RunEnd Trainer::run_steps() {
  start_ = step_start_ = base::Clock::now();
  counters_ = groups_.counters();
  metrics::restart_peak(device());  // what the start needed is over
  bool stops = owes_evaluation_ && !evaluate_validation();
  if (owes_best_) save_after_step({});
  while (!stops && !is_over()) {
    profile();
    const parallel::Votes votes = make_step();
    stops = stops_after(votes[kStop]);
    if (stops) break;
    save_after_step(votes);
    if (is_multiple(step_, config_.report.sample_every)) write_sample();
  }
  const base::LongPhase saving(link_.activity(), kSaving);
  if (stops) {
    if (checkpoints_.lacks(step_)) check_savable();
    checkpoints_.save_now(save_point());
    profiler_.finish(steps_done_, step_);
    return {.stopped = true, .step = step_};
  }
  profiler_.finish(steps_done_, step_);
  save_final();
  return {.stopped = false, .step = step_};
}

parallel::Votes Trainer::make_step() {
  const base::Span span("step", base::TracePart::step, {"step", step_ + 1});
  const Timed timed(spent_.steps);
  const std::vector<data::Batch> microbatches = read_batches();
  metrics::begin_step(step_ + 1);
  const parallel::StepResult result = train_step(microbatches);
  metrics::end_step(step_ + 1);
  link_.activity().finish_step(++step_);
  ++steps_done_;
  report(result);
  measure_peak();
  return result.loss.votes;
}

void Trainer::profile() {
  const base::LongPhase profiling(link_.activity(), "profiling");
  if (profiler_.before_step(steps_done_, step_)) restart_step_clock();
}

// This rank's part of the global batch.
std::vector<data::Batch> Trainer::read_batches() {
  const base::Span span("read data", base::TracePart::data);
  {
    const base::LongPhase reading(link_.activity(), "reading the data");
    loader_.wait();
  }
  return loader_.next();
}

// What has passed since the last step is no part of the next one.
void Trainer::restart_step_clock() {
  counters_ = groups_.counters();
  step_start_ = base::Clock::now();
}

bool Trainer::is_over() const { return step_ >= config_.train.steps || is_out_of_patience(); }

bool Trainer::is_out_of_patience() const {
  const std::int64_t patience = config_.train.patience;
  return patience > 0 && validation_record_.num_since_best >= patience;
}

// The checkpoint of a new lowest validation loss is made at its step, whatever it takes.
void Trainer::save_after_step(const parallel::Votes& votes) {
  const base::Span span("checkpoint", base::TracePart::checkpoint);
  const base::LongPhase saving(link_.activity(), kSaving);
  const Timed timed(spent_.saving);
  const bool is_due =
      std::exchange(owes_best_, false)
          ? checkpoints_.after_best_step(step_)
          : checkpoints_.after_step(step_, {.save = votes[kSave], .busy = votes[kBusy]});
  if (!is_due) return;
  check_savable();
  checkpoints_.save(save_point());
}

// Collective.
void Trainer::write_sample() {
  const base::Span span("sample", base::TracePart::other);
  const base::LongPhase sampling(link_.activity(), "writing a sample");
  make_copies_equal();
  peak_before_sample_ = peak_memory();
  const std::string text = sample_text(engine_, world_, config_, model_, *tokenizer_);
  metrics::restart_peak(device());
  reporter_.sample(step_, text);
  restart_step_clock();
}

parallel::StepResult Trainer::train_step(const std::vector<data::Batch>& microbatches) {
  folder_.rethrow_failure();
  const SaveVotes save = checkpoints_.votes(requests_.take_save());
  // What norms were while gradients were sent whole says nothing of compressed ones.
  const bool is_end_of_warmup = step_ == config_.machine.compress_warmup;
  if (is_end_of_warmup && config::conditions::kCompresses(config_)) spikes_.forget();
  const bool skips_spikes = config_.train.spike_guard == config::SpikeGuard::skip;
  const parallel::StepLimits limits = spikes_.limits();
  parallel::StepResult result;
  try {
    result = engine_.train_step(microbatches,
                                {.max_norm = config_.train.grad_clip,
                                 .learning_rate = schedule_.rate(step_),
                                 .compresses = step_ >= config_.machine.compress_warmup,
                                 .votes = {requests_.wants_stop(), save.save, save.busy},
                                 .limits = skips_spikes ? limits : parallel::StepLimits{}});
  } catch (const base::Error& error) {
    // A loss scale that cannot become smaller ends the run like other numbers.
    if (error.kind() != base::ErrorKind::numerics) throw;
    fail(error.what(), advice());
  }
  if (!result.is_finite() && !result.has_overflowed) refuse(result);
  if (result.is_finite() && config_.train.spike_guard != config::SpikeGuard::off) {
    watch_spikes(result, limits);
  }
  if (result.is_finite() && !result.is_beyond) {
    skipped_in_a_row_ = 0;
  } else {
    count_skip(result);
  }
  return result;
}

// All ranks know the same figures, so all decide alike.
void Trainer::watch_spikes(const parallel::StepResult& result, const parallel::StepLimits& limits) {
  spikes_.note(result.loss.mean(), result.grad_norm);
  const std::string spike = describe_spike(result, limits);
  if (spike.empty() && !result.is_beyond) return;
  warn_of_step(fmt::format("step {}: spike: {}{}", step_ + 1, spike,
                           result.is_beyond ? ": update skipped" : ""));
}

// The loss and the norm are equal on all ranks, so all refuse together.
void Trainer::refuse(const parallel::StepResult& result) {
  const std::string found = found_in(step_ + 1, result);
  if (config_.train.on_nonfinite == config::OnNonfinite::stop) {
    fail(found + ": stopped before the update", advice() + ", or --on-nonfinite skip");
  }
  warn_of_step(found + ": update skipped");
}

// An update that is left out changes nothing, so that one too many in a row shows that more will
// not help. In float16 the loss's scale halves with each.
void Trainer::count_skip(const parallel::StepResult& result) {
  ++skipped_;
  if (++skipped_in_a_row_ <= config_.train.max_skipped) return;
  fail(
      fmt::format("{}: {} update{} in a row {} skipped, more than --max-skipped {}",
                  found_in(step_ + 1, result), skipped_in_a_row_, skipped_in_a_row_ == 1 ? "" : "s",
                  skipped_in_a_row_ == 1 ? "was" : "were", config_.train.max_skipped),
      advice_on_skips(result));
}

std::string Trainer::advice() const {
  return engine_.precision().scales_loss
             ? "use bfloat16 or float32 in place of float16, whose range is small, or lower --lr"
             : "lower --lr";
}

// With a loss scale a run begins with updates that are left out, until the scale fits.
std::string Trainer::advice_on_skips(const parallel::StepResult& result) const {
  if (result.is_beyond) return "raise --spike-threshold, or " + advice();
  const optim::GradScaler* scaler = engine_.scaler();
  if (scaler == nullptr || !std::isfinite(result.loss.mean())) return advice();
  return fmt::format(
      "each halved the loss scale, which is {:g} now: the first ones are normal, so raise "
      "--max-skipped; if they go on, {}",
      scaler->scale(), advice());
}

// Ends the run because of its numbers, on all ranks after the same step.
void Trainer::fail(const std::string& found, const std::string& advice) {
  const base::LongPhase saving(link_.activity(), kSaving);
  checkpoints_.finish();  // what was good when its save began
  const std::string& newest = checkpoints_.newest();
  base::fail(base::ErrorKind::numerics, "{}; {}; {}", found,
             newest.empty() ? "there is no checkpoint of an earlier step"
                            : "the last good checkpoint is " + newest,
             advice);
}

// Copies of one value drift apart on ranks of different CPUs. They are made equal before anything
// is measured or saved.
void Trainer::make_copies_equal() {
  if (!are_cpus_mixed_ || equal_step_ == step_) return;
  engine_.make_copies_equal();
  equal_step_ = step_;
}

// Parameters may be finite and yet so large that no loss is. Costs one pass over what this rank
// will save and, if the step was not evaluated, the forward pass of a microbatch.
void Trainer::check_savable() {
  check_folder_();
  if (checked_step_ == step_) return;
  make_copies_equal();
  const auto begin = base::Clock::now();
  const std::string name = bad_tensor(engine_, world_);
  if (!name.empty()) {
    fail(fmt::format("after step {}: '{}' holds values that are not finite, so nothing of it was "
                     "saved",
                     step_, name),
         name.starts_with(checkpoint::kWeightPrefix) ? advice()
                                                     : "give --grad-clip, or lower it or --lr");
  }
  if (evaluated_step_ != step_) {
    const double loss = engine_.evaluate(probe_, config_.batch.microbatch).value();
    if (!std::isfinite(loss)) {
      fail(fmt::format("after step {}: the loss on training text is {}, so nothing of it was saved",
                       step_, shown(loss)),
           advice());
    }
  }
  checked_step_ = step_;
  // Nothing of this belongs to the next step.
  counters_ = groups_.counters();
  step_start_ += base::Clock::now() - begin;
}

// Whoever asks to stop may have little time: an evaluation that is due is left to the next start.
bool Trainer::stops_after(bool stop_requested) {
  if (validation_.size() > 0 && is_due(step_, config_)) {
    return stop_requested || !evaluate_validation();
  }
  return stop_requested && step_ < config_.train.steps;
}

// False if somebody wants to stop: then nothing is known.
bool Trainer::evaluate_validation() {
  const base::Span span("evaluation", base::TracePart::evaluation);
  const base::LongPhase evaluating(link_.activity(), "evaluating");
  const Timed timed(spent_.evaluation);
  reporter_.evaluating(step_);
  make_copies_equal();
  // A time limit that is shorter than an evaluation must not stop every start in the same one.
  const auto loss = engine_.evaluate(validation_, config_.batch.microbatch, [this] {
    return steps_done_ > 0 ? requests_.wants_stop() : requests_.wants_stop_now();
  });
  restart_step_clock();
  if (!loss) return false;
  const double val_loss = *loss;
  last_evaluation_ = {.step = step_,
                      .val_loss = val_loss,
                      .tokens = validation_.tokens(),
                      .bits_per_byte = units_.bits_per_byte(val_loss),
                      .perplexity_per_word = units_.perplexity_per_word(val_loss),
                      .data = validation_record_.data};
  reporter_.evaluation(*last_evaluation_);
  if (!std::isfinite(val_loss)) {
    fail(fmt::format("after step {}: the validation loss is {}, so nothing of it was saved", step_,
                     shown(val_loss)),
         advice());
  }
  evaluated_step_ = step_;
  const bool is_best = validation_record_.note(step_, val_loss);
  owes_best_ = owes_best_ || (is_best && config_.checkpoint.keep_best);
  return true;
}

checkpoint::SavePoint Trainer::save_point() const {
  const RunHistory history{.validation = validation_record_, .spikes = spikes_.statistics()};
  return {.step = step_,
          .samples = loader_.position(),
          .tokens = tokens_,
          .history = to_text(history),
          .best_step = config_.checkpoint.keep_best ? validation_record_.best_step : -1};
}

void Trainer::save_final() {
  const std::string path = checkpoint::store::final_model(config_.run.dir);
  std::string error;
  {
    const Timed timed(spent_.saving);
    check_savable();
    error = checkpoints_.save_last(save_point());
    write_final_model(engine_, world_,
                      {.model = model_,
                       .settings = config_.model,
                       .path = path,
                       .check = check_folder_,
                       .tokenizer = tokenizer_identity_});
  }
  summarize();
  if (error.empty()) return reporter_.finish();
  base::fail(base::ErrorKind::checkpoint,
             "{} is written, but the checkpoint of step {}, the last one, failed: {}", path, step_,
             error);
}

}  // namespace dtrain::train
