#include "dtrain/train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "dtrain/base/error.h"
#include "dtrain/comm/leader.h"
#include "dtrain/metrics/cpu_memory.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/train/evaluator.h"
#include "dtrain/train/final_model.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kSummarySteps = 50;  // losses averaged for the summary

data::LoaderOptions loader_options(const Job& job) {
  const config::Config& config = job.config();
  return {.microbatch = config.batch.microbatch,
          .grad_accum = config.batch.grad_accum,
          .dp_rank = job.data_group().rank(),
          .dp_size = job.data_group().size(),
          .seed = config.train.seed};
}

optim::Schedule schedule_of(const config::TrainConfig& train) {
  return {.shape = optim::schedule_shape(train.schedule),
          .peak = train.lr,
          .minimum = train.min_lr,
          .warmup_steps = train.warmup_steps,
          .total_steps = train.steps};
}

}  // namespace

Trainer::Trainer(Job& job, const data::Split& split, metrics::Reporter& reporter,
                 base::LauncherLink& link)
    : job_(job),
      config_(job.config()),
      split_(split),
      reporter_(reporter),
      link_(link),
      loader_(split.train, loader_options(job)),
      schedule_(schedule_of(config_.train)),
      peak_flops_(metrics::measure_peak_flops(dtype_of(config_.machine.dtype)) *
                  static_cast<double>(job.world().size())) {}

void Trainer::run() {
  start_ = step_start_ = base::Clock::now();
  counters_ = job_.data_group().calls().counters();
  while (step_ < config_.train.steps) {
    const std::vector<data::Batch> microbatches =
        loader_.next();  // this rank's part of the global batch
    const StepResult result = train_step(microbatches);
    ++step_;
    report(result);
    maybe_evaluate();
  }
  save_final();
}

StepResult Trainer::train_step(const std::vector<data::Batch>& microbatches) {
  parallel::StepEngine& engine = job_.engine();
  const parallel::StepLoss loss = engine.forward_backward(microbatches);
  const StepResult result{.loss = loss.mean(),
                          .grad_norm = engine.clip_grad_norm(config_.train.grad_clip),
                          .learning_rate = schedule_.rate(step_),
                          .num_tokens = loss.num_tokens};
  if (!is_refused(result)) engine.optimizer_step(result.learning_rate);
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
  const comm::CallCounters counters = job_.data_group().calls().counters();
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
                  .mfu = rate * job_.model().training_flops_per_token() / peak_flops_,
                  .memory_bytes = metrics::memory_use().peak,
                  .comm_bytes = counters.bytes_sent - counters_.bytes_sent});
  link_.progress(step_);
  if (std::isfinite(result.loss)) last_losses_.push_back(result.loss);
  if (last_losses_.size() > kSummarySteps) last_losses_.pop_front();
  counters_ = counters;
  step_start_ = now;
}

void Trainer::maybe_evaluate() {
  const std::int64_t every = config_.report.eval_every;
  const bool is_due = step_ == config_.train.steps || (every > 0 && step_ % every == 0);
  if (!is_due || split_.validation.size() == 0) return;
  val_loss_ = evaluate(job_, split_.validation).mean();
  reporter_.evaluation(step_, val_loss_);
  counters_ = job_.data_group().calls().counters();
  step_start_ = base::Clock::now();  // an evaluation is not part of the next step
}

void Trainer::save_final() {
  const double seconds = base::seconds_since(start_);
  const std::string path = final_model_path(config_.run.dir);
  comm::on_leader(job_.groups().world(), "writing the final model",
                  [&] { write_final_model(job_, path); });
  const double sum = std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0);
  reporter_.end({.steps = step_,
                 .train_loss = sum / static_cast<double>(last_losses_.size()),
                 .val_loss = val_loss_,
                 .has_validation = split_.validation.size() > 0,
                 .seconds = seconds,
                 .tokens_per_second = static_cast<double>(tokens_) / seconds,
                 .model_path = path});
}

}  // namespace dtrain::train
