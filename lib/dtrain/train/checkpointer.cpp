#include "dtrain/train/checkpointer.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/train/internal/run_history.h"

namespace dtrain::train {
namespace {

namespace store = checkpoint::store;

constexpr double kBytesPerMegabyte = 1e6;
// How long training waits for the last checkpoint when the next one is due: longer than small ones
// take, so that they come at the steps they were asked for.
constexpr base::Seconds kPatience(1);

checkpoint::SaverOptions saver_options(const Checkpointer::Options& options) {
  const config::CheckpointConfig& config = options.config.checkpoint;
  return {.checkpoints = store::checkpoints_folder(options.config.run.dir),
          .manifest = {.run = options.run,
                       .mesh = config::mesh_of(options.config.layout),
                       .config = config::to_json(config::Command::train, options.config),
                       .data_fingerprint = options.data_fingerprint,
                       .contents = {}},
          .retention = {.keep_last = config.keep_last, .keep_every = config.keep_every},
          .bytes_per_second = config.write_limit_mbps * kBytesPerMegabyte};
}

// The step of the lowest validation loss whose checkpoint stands, as the newest checkpoints up to
// `last` tell; negative: there is none. Of the best one the save may have failed, so that an
// earlier one was kept. Losses of other sequences than `evaluated_data` do not count.
std::int64_t standing_best(const std::string& checkpoints, std::int64_t last,
                           std::string_view evaluated_data) {
  const auto folder_of = [&](std::int64_t step) {
    return fmt::format("{}/{}", checkpoints, store::checkpoint_name(step));
  };
  for (const std::int64_t step : store::list_steps(checkpoints)) {
    if (step > last) continue;
    const std::string path = folder_of(step);
    try {
      const checkpoint::format::Manifest manifest = store::read_manifest(path);
      const ValidationRecord record =
          history_of(manifest, config::from_json(manifest.config), path).validation;
      const std::int64_t best = record.best_step;
      if (best < 0) return best;
      if (!record.data.empty() && record.data != evaluated_data) return -1;
      if (base::path_exists(fmt::format("{}/{}", folder_of(best), store::kManifestName)))
        return best;
    } catch (const base::StorageError&) {
      throw;  // an older one would have the best checkpoint removed
    } catch (const base::Error&) {
      continue;  // a damaged one tells nothing
    }
  }
  return -1;
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
      check_folder_(options.check_folder),
      saved_step_(options.saved_step),
      newest_(options.saved_path),
      is_newest_own_(options.saved_step >= 0),
      resume_flags_(options.resume_flags),
      run_name_(options.run_name) {
  if (!config_.every.is_never()) saver_.stage(engine_.state());
  if (!config_.keep_best || saved_step_ < 0) return;
  comm::run_long_on_leader(world, "looking for the best checkpoint", [&] {
    best_step_ = standing_best(store::checkpoints_folder(options.config.run.dir), saved_step_,
                               options.evaluated_data);
  });
}

void Checkpointer::notify_start() {
  if (is_newest_own_) notify_launcher(saved_step_);
}

SaveVotes Checkpointer::votes(bool save_requested) {
  saver_.warn_if_slow();
  // One clock decides for all: that of whoever sees the time pass first.
  const bool is_time =
      config_.every.seconds > 0 && base::seconds_since(last_) >= config_.every.seconds;
  return {.save = save_requested || is_time, .busy = saver_.is_busy()};
}

bool Checkpointer::after_step(std::int64_t step, const SaveVotes& agreed) {
  if (saver_.is_saving() && !agreed.busy) {
    if (const auto report = saver_.advance()) tell(*report);
  }
  is_waiting_ =
      is_waiting_ || agreed.save || (config_.every.steps > 0 && step % config_.every.steps == 0);
  if (!is_waiting_) return false;
  make_room(step);
  return !saver_.is_saving();
}

bool Checkpointer::after_best_step(std::int64_t step) {
  if (saved_step_ == step) {
    best_step_ = step;
    return false;
  }
  finish();
  return true;
}

// A step whose checkpoint is to stay for ever is saved whatever it takes. Else a save that is not
// over soon is left to go on: the next one is made when it is.
void Checkpointer::make_room(std::int64_t step) {
  const std::int64_t keep_every = config_.keep_every;
  if (keep_every > 0 && step % keep_every == 0) return finish();
  if (is_late_) return;
  if (const auto report = saver_.finish_within(kPatience)) tell(*report);
  is_late_ = saver_.is_saving();
  if (!is_late_) return;
  reporter_.warn(step, fmt::format("the checkpoint of step {} is due, but that of step {} is still "
                                   "being written: it is saved after that, at a later step",
                                   step, saved_step_));
}

void Checkpointer::begin(const checkpoint::SavePoint& point) {
  saves_best_ = point.best_step == point.step;
  checkpoint::SavePoint kept = point;
  if (!saves_best_) kept.best_step = best_step_;
  check_folder_();
  saver_.begin(kept, engine_.state());
  last_ = base::Clock::now();
  saved_step_ = point.step;
  is_waiting_ = is_late_ = false;
}

// Without a copy of the state nothing may change before it is written.
void Checkpointer::save(const checkpoint::SavePoint& point) {
  begin(point);
  if (config_.every.is_never()) finish();
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

// No later save makes up for one that fails here, so it is retried once.
void Checkpointer::save_at_the_end(const checkpoint::SavePoint& point) {
  if (saved_step_ != point.step) finish();
  if (saved_step_ == point.step && !saver_.is_saving() && last_error_.empty()) return;
  if (!saver_.is_saving()) begin(point);
  checkpoint::SaveReport report = saver_.finish();
  if (!report.error.empty()) {
    reporter_.warn(report.step, fmt::format("checkpoint of step {} failed: {}; retrying once",
                                            report.step, report.error));
    begin(point);
    report = saver_.finish();
  }
  tell(report);
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
  is_newest_own_ = true;
  if (saves_best_) best_step_ = report.step;
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
  notify_launcher(report.step);
}

void Checkpointer::notify_launcher(std::int64_t step) {
  newest_step_ = step;
  if (world_.rank() == 0) link_.committed(step, run_name_, how_to_continue());
}

void Checkpointer::notify_failure() const {
  // Its advice on the last checkpoint was true when that was saved.
  if (is_newest_own_ && world_.rank() == 0 && how_to_continue().empty()) {
    link_.committed(newest_step_, run_name_, {});
  }
}

std::string Checkpointer::how_to_continue() const {
  if (!is_newest_own_) return {};
  std::error_code error;  // the run folder may have been moved or removed meanwhile
  if (std::filesystem::status(newest_, error).type() == std::filesystem::file_type::not_found) {
    return {};
  }
  return fmt::format("the newest checkpoint is {}: to continue, rerun with {}", newest_,
                     resume_flags_);
}

}  // namespace dtrain::train
