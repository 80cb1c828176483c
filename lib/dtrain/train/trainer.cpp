#include "dtrain/train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/metrics/cpu_memory.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/train/evaluator.h"
#include "dtrain/train/final_model.h"
#include "dtrain/train/ranks.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kSummarySteps = 50;  // losses averaged for the summary
constexpr std::int64_t kMemorySteps = 3;   // after which the peak of memory is known

data::LoaderOptions loader_options(Job& job, const StartPoint& start) {
  const config::Config& config = job.config();
  return {.microbatch = config.batch.microbatch,
          .grad_accum = config.batch.grad_accum,
          .dp_rank = job.data_group().rank(),
          .dp_size = job.data_group().size(),
          .interleave = job.engine().deal().interleave,
          .seed = config.train.seed,
          .start_position = start.samples};
}

optim::Schedule schedule_of(const config::TrainConfig& train) {
  return {.shape = optim::schedule_shape(train.schedule),
          .peak = train.lr,
          .minimum = train.min_lr,
          .warmup_steps = train.warmup_steps,
          .decay_steps = train.decay_steps,
          .total_steps = train.steps};
}

}  // namespace

Trainer::Trainer(Parts parts, const StartPoint& start)
    : job_(parts.job),
      config_(job_.config()),
      split_(parts.split),
      reporter_(parts.reporter),
      link_(parts.link),
      checkpoints_(parts.checkpoints),
      requests_(parts.requests),
      loader_(split_.train, loader_options(job_, start)),
      schedule_(schedule_of(config_.train)),
      step_(start.step),
      tokens_(start.tokens),
      start_tokens_(start.tokens),
      peak_flops_(metrics::measure_peak_flops(dtype_of(config_.machine.param_dtype)) *
                  static_cast<double>(job_.world().size())),
      predicted_memory_(sum_of_process(config_, job_.groups().world(), job_.memory().total())) {}

RunEnd Trainer::run() {
  start_ = step_start_ = base::Clock::now();
  counters_ = job_.groups().counters();
  metrics::restart_peak();                             // what the start needed is over
  if (step_ >= config_.train.steps) maybe_evaluate();  // the run had come to its end before
  while (step_ < config_.train.steps) {
    const std::vector<data::Batch> microbatches =
        loader_.next();  // this rank's part of the global batch
    const StepResult result = train_step(microbatches);
    ++step_;
    report(result);
    report_memory();
    maybe_evaluate();
    checkpoints_.after_step(save_point(), result.flags);
    if (result.flags.stop && step_ < config_.train.steps) {
      checkpoints_.save_now(save_point());
      return {.stopped = true, .step = step_};
    }
  }
  save_final();
  return {.stopped = false, .step = step_};
}

StepResult Trainer::train_step(const std::vector<data::Batch>& microbatches) {
  parallel::StepEngine& engine = job_.engine();
  const Requests requests = requests_.poll();
  parallel::StepFlags flags = checkpoints_.flags(requests.save);
  flags.stop = requests.stop;
  const parallel::StepLoss loss = engine.forward_backward(microbatches, flags);
  const StepResult result{.loss = loss.mean(),
                          .grad_norm = engine.clip_grad_norm(config_.train.grad_clip),
                          .learning_rate = schedule_.rate(step_),
                          .num_tokens = loss.num_tokens,
                          .flags = loss.flags};
  const bool is_left_out = engine.has_overflowed(result.grad_norm) || is_refused(result);
  if (!is_left_out) engine.optimizer_step(result.learning_rate);
  return result;
}

// The loss and the norm are equal on all ranks, so all refuse together.
bool Trainer::is_refused(const StepResult& result) {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return false;
  const std::string found =
      fmt::format("step {}: loss {}, gradient norm {}", step_ + 1, result.loss, result.grad_norm);
  if (config_.train.on_nonfinite == "stop") {
    base::fail(base::ErrorKind::numerics,
               "{}: stopped before the update; lower --lr, or --on-nonfinite skip", found);
  }
  reporter_.warn(step_ + 1, found + ": update skipped");
  return true;
}

void Trainer::report(const StepResult& result) {
  const auto now = base::Clock::now();
  const double seconds = base::Seconds(now - step_start_).count();
  const comm::CallCounters counters = job_.groups().counters();
  tokens_ += result.num_tokens;
  const double rate = static_cast<double>(result.num_tokens) / seconds;
  reporter_.step({.step = step_,
                  .loss = result.loss,
                  .grad_norm = result.grad_norm,
                  .learning_rate = result.learning_rate,
                  .tokens = tokens_,
                  .samples = loader_.position(),
                  .tokens_per_second = rate,
                  .step_seconds = seconds,
                  .wait_seconds = counters.wait_seconds - counters_.wait_seconds,
                  .mfu = rate * job_.whole_model().training_flops_per_token() / peak_flops_,
                  .memory_bytes = metrics::memory_use().peak,
                  .comm_bytes = counters.bytes_sent - counters_.bytes_sent,
                  .loss_scaling = loss_scaling()});
  link_.progress(step_);
  if (std::isfinite(result.loss)) last_losses_.push_back(result.loss);
  if (last_losses_.size() > kSummarySteps) last_losses_.pop_front();
  counters_ = counters;
  step_start_ = now;
}

void Trainer::report_memory() {
  const std::int64_t peak = metrics::memory_use().peak;
  const bool is_counted = peak > 0;  // by the allocator that the program installs
  if (++steps_done_ != kMemorySteps || !is_counted) return;
  reporter_.memory({.step = step_, .predicted = predicted_memory_, .peak = peak});
}

std::optional<metrics::LossScaling> Trainer::loss_scaling() {
  const optim::GradScaler* scaler = job_.engine().scaler();
  if (scaler == nullptr) return std::nullopt;
  return metrics::LossScaling{.scale = scaler->scale(), .skipped_steps = scaler->num_skipped()};
}

void Trainer::maybe_evaluate() {
  const std::int64_t every = config_.report.eval_every;
  const bool is_due = step_ >= config_.train.steps || (every > 0 && step_ % every == 0);
  if (!is_due || split_.validation.size() == 0) return;
  reporter_.evaluating(step_);
  val_loss_ = evaluate(job_, split_.validation).mean();
  reporter_.evaluation(step_, val_loss_);
  counters_ = job_.groups().counters();
  step_start_ = base::Clock::now();  // an evaluation is not part of the next step
}

checkpoint::SavePoint Trainer::save_point() const {
  return {.step = step_, .samples = loader_.position(), .tokens = tokens_};
}

void Trainer::save_final() {
  checkpoints_.save_last(save_point());
  write_final_model(job_, checkpoint::store::final_model(config_.run.dir));
  summarize();
}

void Trainer::summarize() {
  const double seconds = base::seconds_since(start_);
  std::optional<double> train_loss;
  if (!last_losses_.empty()) {
    train_loss = std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0) /
                 static_cast<double>(last_losses_.size());
  }
  reporter_.end({.steps = step_,
                 .train_loss = train_loss,
                 .val_loss = val_loss_,
                 .has_validation = split_.validation.size() > 0,
                 .seconds = seconds,
                 .tokens_per_second = static_cast<double>(tokens_ - start_tokens_) / seconds,
                 .model_path = checkpoint::store::final_model(config_.run.dir),
                 .failed_checkpoints = checkpoints_.num_failures()});
}

}  // namespace dtrain::train
