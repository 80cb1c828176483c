#include "dtrain/train/internal/checkpoint_writer.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

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

checkpoint::SaverOptions saver_options(const CheckpointOptions& options) {
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

// Returns the step of the lowest validation loss whose checkpoint is committed, according to the
// newest readable manifest up to step `last`; negative if there is none. A best step whose save
// failed has no checkpoint, so an older manifest names the kept one. Losses of sequences other than
// `evaluated_data` do not count.
std::int64_t committed_best(const std::string& checkpoints, std::int64_t last,
                            std::string_view evaluated_data) {
  const auto folder_of_step = [&](std::int64_t step) {
    return fmt::format("{}/{}", checkpoints, store::checkpoint_name(step));
  };
  for (const std::int64_t step : store::list_steps(checkpoints)) {
    if (step > last) continue;
    const std::string path = folder_of_step(step);
    try {
      const checkpoint::format::Manifest manifest = store::read_manifest(path);
      const ValidationRecord record =
          history_of(manifest, config::from_json(manifest.config), path).validation;
      const std::int64_t best = record.best_step;
      if (best < 0) return best;
      if (!record.data.empty() && record.data != evaluated_data) return -1;
      if (base::path_exists(fmt::format("{}/{}", folder_of_step(best), store::kManifestName)))
        return best;
    } catch (const base::StorageError&) {
      throw;  // to continue with an older manifest would remove the best checkpoint
    } catch (const base::Error&) {
      continue;  // damaged
    }
  }
  return -1;
}

}  // namespace

CheckpointWriter::CheckpointWriter(parallel::StepEngine& engine, comm::ProcessGroup& world,
                                   metrics::Reporter& reporter, LatestCheckpoint& latest,
                                   const CheckpointOptions& options)
    : engine_(engine),
      reporter_(reporter),
      latest_(latest),
      disk_(options.folder, base::ErrorKind::checkpoint),
      saver_(world, disk_, saver_options(options)),
      check_folder_(options.check_folder),
      saved_step_(options.saved_step) {
  const config::CheckpointConfig& config = options.config.checkpoint;
  if (!config.every.is_never()) saver_.stage(engine_.whole_model().state());
  if (!config.keep_best || saved_step_ < 0) return;
  comm::run_long_on_leader(world, "looking for the best checkpoint", [&] {
    best_step_ = committed_best(store::checkpoints_folder(options.config.run.dir), saved_step_,
                                options.evaluated_data);
  });
}

bool CheckpointWriter::poll() {
  saver_.warn_if_slow();
  return saver_.is_busy();
}

void CheckpointWriter::begin(const checkpoint::SavePoint& point) {
  saves_best_ = point.best_step == point.step;
  checkpoint::SavePoint kept = point;
  if (!saves_best_) kept.best_step = best_step_;
  check_folder_();
  saver_.begin(kept, engine_.whole_model().state());
  saved_step_ = point.step;
}

void CheckpointWriter::advance() {
  if (!is_saving()) return;
  if (const auto ended = saver_.advance()) report(*ended);
}

void CheckpointWriter::finish_within(base::Seconds patience) {
  if (const auto ended = saver_.finish_within(patience)) report(*ended);
}

void CheckpointWriter::finish() {
  if (is_saving()) report(saver_.finish());
}

std::string CheckpointWriter::save_with_retry(const checkpoint::SavePoint& point) {
  if (saved_step_ != point.step) finish();
  if (saved_step_ == point.step && !is_saving() && last_error_.empty()) return {};
  if (!is_saving()) begin(point);
  checkpoint::SaveReport ended = saver_.finish();
  if (!ended.error.empty()) {
    reporter_.warn(ended.step, fmt::format("checkpoint of step {} failed: {}; retrying once",
                                           ended.step, ended.error));
    begin(point);
    ended = saver_.finish();
  }
  report(ended);
  return last_error_;
}

void CheckpointWriter::report(const checkpoint::SaveReport& report) {
  last_error_ = report.error;
  if (!report.error.empty()) {
    ++num_failures_;
    return reporter_.warn(
        report.step, fmt::format("checkpoint of step {} failed: {}", report.step, report.error));
  }
  latest_.set(report.step, report.path);
  if (saves_best_) best_step_ = report.step;
  reporter_.report(metrics::CheckpointEvent{.step = report.step,
                                            .path = report.path,
                                            .bytes = report.bytes,
                                            .stall_seconds = report.stall_seconds,
                                            .seconds = report.seconds});
  // The same folder may obstruct every save: one warning is enough.
  if (!report.warning.empty() && report.warning != last_warning_) {
    reporter_.warn(report.step,
                   fmt::format("checkpoint of step {}: {}", report.step, report.warning));
  }
  last_warning_ = report.warning;
  latest_.notify_launcher();
}

}  // namespace dtrain::train
