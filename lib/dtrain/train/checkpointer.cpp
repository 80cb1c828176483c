#include "dtrain/train/checkpointer.h"

#include <fmt/format.h>

#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/json.h"
#include "dtrain/config/layout.h"

namespace dtrain::train {
namespace {

constexpr double kBytesPerMegabyte = 1e6;
// How long training waits for the last checkpoint when the next one is due: longer than small ones
// take, so that they come at the steps they were asked for.
constexpr base::Seconds kPatience(1);

checkpoint::format::Manifest manifest_of(const Checkpointer::Options& options) {
  return {.run = options.run,
          .mesh = config::mesh_of(options.config.layout),
          .config = config::to_json(config::Command::train, options.config),
          .data_fingerprint = options.data_fingerprint,
          .contents = {}};
}

checkpoint::SaverOptions saver_options(const Checkpointer::Options& options) {
  const config::CheckpointConfig& config = options.config.checkpoint;
  return {.checkpoints = checkpoint::store::checkpoints_folder(options.config.run.dir),
          .manifest = manifest_of(options),
          .retention = {.keep_last = config.keep_last, .keep_every = config.keep_every},
          .bytes_per_second = config.write_limit_mbps * kBytesPerMegabyte};
}

}  // namespace

Checkpointer::Checkpointer(parallel::StepEngine& engine, comm::ProcessGroup& world,
                           metrics::Reporter& reporter, base::LauncherLink& link,
                           const Options& options)
    : engine_(engine),
      world_(world),
      reporter_(reporter),
      link_(link),
      config_(options.config.checkpoint),
      disk_(options.folder, base::ErrorKind::checkpoint),
      saver_(world, disk_, saver_options(options)),
      saved_step_(options.saved_step),
      newest_(options.saved_path) {
  if (!config_.every.is_never()) saver_.stage(engine_.state());
}

SaveVotes Checkpointer::votes(bool save_requested) const {
  // One clock decides for all: that of whoever sees the time pass first.
  const bool is_time =
      config_.every.seconds > 0 && base::seconds_since(last_) >= config_.every.seconds;
  return {.save = save_requested || is_time, .busy = saver_.is_busy()};
}

bool Checkpointer::is_due(std::int64_t step, const SaveVotes& agreed) const {
  return is_waiting_ || agreed.save || (config_.every.steps > 0 && step % config_.every.steps == 0);
}

void Checkpointer::after_step(const checkpoint::SavePoint& point, const SaveVotes& agreed) {
  if (saver_.is_saving() && !agreed.busy) {
    if (const auto report = saver_.advance()) tell(*report);
  }
  is_waiting_ = is_due(point.step, agreed);
  if (!is_waiting_) return;
  make_room(point.step);
  if (saver_.is_saving()) return;
  begin(point);
  // Without a copy of the state nothing may change before it is written.
  if (config_.every.is_never()) finish();
}

// A step whose checkpoint is to stay for ever is saved whatever it takes. Else a save that is not
// over soon is left to go on: the next one is made when it is.
void Checkpointer::make_room(std::int64_t step) {
  const std::int64_t keep_every = config_.keep_every;
  if (keep_every > 0 && step % keep_every == 0) return finish();
  if (is_late_) return;
  if (const auto report = saver_.finish_within(kPatience)) tell(*report);
  is_late_ = saver_.is_saving();
}

void Checkpointer::begin(const checkpoint::SavePoint& point) {
  check_();
  saver_.begin(point, engine_.state());
  last_ = base::Clock::now();
  saved_step_ = point.step;
  is_waiting_ = is_late_ = false;
}

void Checkpointer::save_at(const checkpoint::SavePoint& point) {
  if (saved_step_ == point.step) return;
  finish();
  begin(point);
  if (config_.every.is_never()) finish();
}

checkpoint::SaveReport Checkpointer::save(const checkpoint::SavePoint& point) {
  begin(point);
  return saver_.finish();
}

void Checkpointer::finish() {
  if (saver_.is_saving()) tell(saver_.finish());
}

std::string Checkpointer::save_last(const checkpoint::SavePoint& point) {
  if (!config_.every.at_the_end) {
    finish();
    return {};
  }
  save_at_the_end(point);
  return last_error_;
}

// No later save makes up for one that fails here: it is tried once more.
void Checkpointer::save_at_the_end(const checkpoint::SavePoint& point) {
  std::optional<checkpoint::SaveReport> report;
  if (saver_.is_saving()) report = saver_.finish();
  if (report && report->step != point.step) {
    tell(*report);
    report.reset();
  }
  const bool stands = saved_step_ == point.step && last_error_.empty();
  if (!report && stands) return;
  if (!report) report = save(point);
  if (!report->error.empty()) {
    reporter_.warn(report->step,
                   fmt::format("checkpoint of step {} failed: {}; it is tried once more",
                               report->step, report->error));
    report = save(point);
  }
  tell(*report);
}

void Checkpointer::save_now(const checkpoint::SavePoint& point) {
  save_at_the_end(point);
  if (!last_error_.empty()) {
    base::fail(base::ErrorKind::checkpoint, "stopped after step {}, which could not be saved: {}",
               point.step, last_error_);
  }
}

void Checkpointer::tell(const checkpoint::SaveReport& report) {
  last_error_ = report.error;
  if (!report.error.empty()) {
    ++num_failures_;
    reporter_.warn(report.step,
                   fmt::format("checkpoint of step {} failed: {}", report.step, report.error));
    return;
  }
  newest_ = report.path;
  reporter_.checkpoint({.step = report.step,
                        .path = report.path,
                        .bytes = report.bytes,
                        .stall_seconds = report.stall_seconds,
                        .seconds = report.seconds});
  // The same folder may be in the way of every save: one warning is enough.
  if (!report.warning.empty() && report.warning != last_warning_) {
    reporter_.warn(report.step,
                   fmt::format("checkpoint of step {}: {}", report.step, report.warning));
  }
  last_warning_ = report.warning;
  if (world_.rank() == 0) link_.committed(report.step);
}

}  // namespace dtrain::train
