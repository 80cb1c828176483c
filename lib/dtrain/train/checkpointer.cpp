#include "dtrain/train/checkpointer.h"

#include <fmt/format.h>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

// How long training waits for the previous checkpoint when the next one is due: longer than small
// ones take, so that they are saved at the steps they were requested for.
constexpr base::Seconds kPatience(1);

LatestCheckpoint::Options latest_options(const CheckpointOptions& options, bool is_leader) {
  return {.is_leader = is_leader,
          .saved_step = options.saved_step,
          .saved_path = options.saved_path,
          .resume_flags = options.resume_flags,
          .run_name = options.run_name};
}

}  // namespace

Checkpointer::Checkpointer(parallel::StepEngine& engine, comm::ProcessGroup& world,
                           metrics::Reporter& reporter, base::LauncherLink& link,
                           const CheckpointOptions& options)
    : reporter_(reporter),
      link_(link),
      state_check_(options.state_check),
      config_(options.config.checkpoint),
      latest_(link, latest_options(options, world.rank() == 0)),
      writer_(engine, world, reporter, latest_, options) {}

SaveVotes Checkpointer::votes(bool save_requested) {
  const bool is_busy = writer_.poll();
  // One clock decides for all: that of the rank that sees the time pass first.
  const bool is_time =
      config_.every.seconds > 0 && base::seconds_since(last_save_) >= config_.every.seconds;
  return {.save = save_requested || is_time, .busy = is_busy};
}

bool Checkpointer::after_step(std::int64_t step, const SaveVotes& agreed) {
  if (!agreed.busy) writer_.advance();
  is_due_ = is_due_ || agreed.save || (config_.every.steps > 0 && step % config_.every.steps == 0);
  if (!is_due_) return false;
  wait_for_previous(step);
  return !writer_.is_saving();
}

bool Checkpointer::after_best_step(std::int64_t step) {
  if (writer_.saved_step() == step) {
    writer_.mark_best();
    return false;
  }
  writer_.finish();
  return true;
}

// A step whose checkpoint --keep-every keeps for good is saved however long that takes.
void Checkpointer::wait_for_previous(std::int64_t step) {
  const std::int64_t keep_every = config_.keep_every;
  if (keep_every > 0 && step % keep_every == 0) return writer_.finish();
  if (has_waited_) return;
  writer_.finish_within(kPatience);
  has_waited_ = writer_.is_saving();
  if (!has_waited_) return;
  reporter_.warn(step, fmt::format("the checkpoint of step {} is due, but that of step {} is still "
                                   "being written: saving at a later step instead",
                                   step, writer_.saved_step()));
}

void Checkpointer::check_state(std::int64_t step) {
  if (const auto failure = state_check_.find_failure(step)) fail(*failure);
}

void Checkpointer::save(const checkpoint::SavePoint& point) {
  check_state(point.step);
  writer_.begin(point);
  last_save_ = base::Clock::now();
  is_due_ = has_waited_ = false;
  if (config_.every.is_never()) writer_.finish();  // no copy: the state must not change before
}

void Checkpointer::save_and_stop(const checkpoint::SavePoint& point) {
  if (writer_.saved_step() != point.step) check_state(point.step);
  const std::string error = writer_.save_with_retry(point);
  if (error.empty()) return;
  base::fail(base::ErrorKind::checkpoint, "stopped after step {}, which could not be saved: {}",
             point.step, error);
}

std::string Checkpointer::save_last(const checkpoint::SavePoint& point) {
  check_state(point.step);
  if (config_.every.at_the_end) return writer_.save_with_retry(point);
  writer_.finish();
  return {};
}

void Checkpointer::fail(const NumericalFailure& failure) {
  const base::LongPhase saving(link_.activity(), kSavingPhase);
  writer_.finish();
  const std::string& latest = latest_.path();
  base::fail(base::ErrorKind::numerics, "{}; {}; {}", failure.found,
             latest.empty() ? "there is no checkpoint of an earlier step"
                            : "the last good checkpoint is " + latest,
             failure.advice);
}

}  // namespace dtrain::train
