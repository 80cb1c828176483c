#include "dtrain/job/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "dtrain/base/file_system.h"
#include "dtrain/base/input_file.h"
#include "dtrain/base/log.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/job/shared_folder.h"
#include "dtrain/metrics/event_file.h"
#include "dtrain/metrics/metrics_file.h"

namespace dtrain::job {
namespace {

namespace store = checkpoint::store;
using base::ErrorKind;

std::string made_folder(const config::Config& config, base::NewFolders& made) {
  config::check_run_folder(config);
  std::error_code error;
  made.add(config.run.dir, error);
  if (error) {
    base::fail_on_storage(
        ErrorKind::usage, error.value(),
        fmt::format("--run-dir {}: cannot create it: {}", config.run.dir, error.message()));
  }
  return config.run.dir;
}

// Makes the folder, and again where a job that was refused has just removed it.
std::unique_ptr<store::RunLock> locked_folder(const config::Config& config,
                                              base::NewFolders& made) {
  for (int tries_left = 3;; --tries_left) {
    const std::string folder = made_folder(config, made);
    try {
      return std::make_unique<store::RunLock>(folder);
    } catch (const base::Error&) {
      if (base::is_folder(folder) || tries_left == 0) throw;
    }
  }
}

constexpr base::FileRole kTokenizerFile{ErrorKind::usage, "file", "check its permissions"};

// True if the folder has the settings and metrics of a run that saves its last step. Such a run
// without a checkpoint is not complete: the disk had room for the final model, but not for the
// checkpoint.
bool lacks_last_step(const std::string& run_dir) {
  const std::string path = run_dir + "/config.json";
  return base::is_there(path) && base::is_there(RunFolder::metrics_file(run_dir)) &&
         config::read_saved_run(path).resolved.checkpoint.every.at_the_end;
}

void write_file(const std::string& path, const std::string& text) {
  base::write_atomically(path, ErrorKind::checkpoint, text);
}

}  // namespace

RunFolder::RunFolder(const config::Config& config, std::string run, config::StartRecord record,
                     base::NewFolders made)
    : config_(config),
      record_(std::move(record)),
      run_(std::move(run)),
      made_(std::move(made)),
      dir_(config.run.dir),
      checkpoints_(store::checkpoints_folder(dir_)),
      lock_(locked_folder(config, made_)),
      held_(dir_, ErrorKind::checkpoint),
      disk_(held_, ErrorKind::checkpoint) {
  // Again, now that no other job can change it.
  config::check_run_folder(config_);
  store::check_run_files(dir_, config::replacing_flag(config_));
  remove_leftovers();
}

void RunFolder::keep() {
  made_.keep();
  lock_->keep();
}

void RunFolder::check() const {
  held_.check();
  if (!lock_->is_replaced()) return;
  base::fail(ErrorKind::checkpoint,
             "'{}/lock' is not this job's any more: another job has taken the folder; nothing more "
             "is written there",
             dir_);
}

void RunFolder::begin(std::string_view tokenizer) {
  if (config_.checkpoint.resume.is_automatic()) {
    check_is_new();
    if (base::is_there(dir_ + "/config.json")) {
      base::log_info(
          "{} holds a run without a checkpoint: it begins again at step 0, with this command's "
          "settings",
          dir_);
    }
  }
  check_tokenizer(tokenizer);
  check_writable();
  if (config_.run.overwrite) remove_old_run();
  write_config();
  keep_tokenizer(tokenizer);
  keep();
}

// There is no checkpoint. A run that has had some would lose its metrics if it began anew. A final
// model stays until the new run's replaces it.
void RunFolder::check_is_new() const {
  if (base::is_there(store::final_model(dir_)) && !lacks_last_step(dir_)) {
    base::fail(
        ErrorKind::usage,
        "--resume auto: {} holds a finished run without checkpoints, which cannot be resumed: "
        "name another folder (with --init-from {} to train its weights further), or give "
        "--overwrite instead to replace it",
        dir_, dir_);
  }
  const std::string path = metrics_file(dir_);
  const std::string checkpoint = metrics::last_checkpoint(path);
  if (checkpoint.empty()) return;
  base::fail(ErrorKind::usage,
             "--resume auto: {} tells of checkpoint {}, but {} holds none: bring it back, or name "
             "another folder (with --resume and a checkpoint, to resume from that), or give "
             "--overwrite instead to begin anew",
             path, checkpoint, checkpoints_);
}

store::SetAside RunFolder::go_on(std::int64_t step, std::string_view tokenizer,
                                 const std::vector<std::int64_t>& unreadable) {
  check_tokenizer(tokenizer);
  check_writable();
  auto aside = store::set_aside_after(disk_, checkpoints_, step, run_, unreadable);
  metrics::cut_back(metrics_file(dir_), step);
  record_.passed_over = {.run = run_, .steps = unreadable};
  write_config();
  keep_tokenizer(tokenizer);
  keep();
  return aside;
}

void RunFolder::ask_for_requeue(std::int64_t step, const std::string& reason) {
  check();
  write_file(requeue_file(dir_), fmt::format("stopped after step {} by {}\n", step, reason));
  try {
    disk_.remove_file(stop_file(dir_));
  } catch (const base::Error& error) {
    base::log_warning("the next start will stop at once: {}", error.what());
  }
}

std::string RunFolder::requeue_file(const std::string& run_dir) { return run_dir + "/REQUEUE"; }

std::string RunFolder::stop_file(const std::string& run_dir) { return run_dir + "/STOP"; }

void RunFolder::check_tokenizer(std::string_view model) const {
  const std::string path = tokenizer_file(dir_);
  if (model.empty() || !base::is_there(path) || base::content_of(path, kTokenizerFile) == model)
    return;
  if (config_.run.overwrite && replaces_tokenizer()) return;
  base::fail(ErrorKind::usage,
             "'{}' is not the tokenizer of the run's data, which would replace it; move it, or "
             "name another --run-dir",
             path);
}

void RunFolder::keep_tokenizer(std::string_view model) const {
  const std::string path = tokenizer_file(dir_);
  if (!model.empty() && !base::is_there(path)) write_file(path, std::string(model));
}

// Whether tokenizer.model is that of the old run's final model.
bool RunFolder::replaces_tokenizer() const {
  const std::string model = store::final_model(dir_);
  const std::string path = tokenizer_file(dir_);
  if (!base::is_there(model) || !base::is_there(path)) return false;
  try {
    const auto file = checkpoint::format::SafetensorsFile::open(model);
    const auto found = file.metadata().find(store::kTokenizerKey);
    return found != file.metadata().end() &&
           found->second == data::identity_of(data::TokenizerKind::sentencepiece,
                                              base::content_of(path, kTokenizerFile));
  } catch (const base::Error&) {
    return false;  // an empty file
  }
}

std::string RunFolder::tokenizer_file(const std::string& run_dir) {
  return run_dir + "/tokenizer.model";
}

std::string RunFolder::metrics_file(const std::string& run_dir) {
  return run_dir + "/metrics.jsonl";
}

std::string RunFolder::event_folder(const std::string& run_dir) { return run_dir + "/tensorboard"; }

std::string RunFolder::trace_file(const std::string& run_dir) {
  return run_dir + "/profile/trace.json";
}

// Finds at the start what cannot be written at the end.
void RunFolder::check_writable() {
  check();
  const std::string model = store::final_model(dir_);
  const std::string folder = base::parent_folder(model);
  {
    base::NewFolders made;
    std::error_code error;
    made.add(folder, error);
    if (error) {
      base::fail_on_storage(ErrorKind::checkpoint, error.value(),
                            fmt::format("'{}' cannot be created ({})", folder, error.message()));
    }
    const base::AtomicFile probe(model, ErrorKind::checkpoint);
  }
  const auto access = [&] { return ::access(checkpoints_.c_str(), R_OK | W_OK | X_OK); };
  if (base::is_there(checkpoints_) && base::with_patience(checkpoints_, access) != 0) {
    const int reason = errno;
    base::fail_on_storage(
        ErrorKind::checkpoint, reason,
        fmt::format("'{}' cannot be written ({})", checkpoints_, std::strerror(reason)));
  }
  check_commits();
  if (config_.report.profile > 0) disk_.make_folder(base::parent_folder(trace_file(dir_)));
}

// Tries what a commit needs of the file system: renaming a folder, and fsync.
void RunFolder::check_commits() {
  base::NewFolders made;
  std::error_code error;
  made.add(checkpoints_, error);
  if (error) {
    base::fail_on_storage(
        ErrorKind::checkpoint, error.value(),
        fmt::format("'{}' cannot be created ({})", checkpoints_, error.message()));
  }
  // Names of leftovers, which the next start removes.
  const std::string folder = store::temporary_folder(checkpoints_, 0, run_);
  const std::string renamed = store::temporary_folder(checkpoints_, 1, run_);
  disk_.make_folder(folder);
  base::write_anew(disk_, fmt::format("{}/{}", folder, store::kManifestName),
                   [](base::OutputFile&) {});
  disk_.rename(folder, renamed);
  disk_.sync_folder(renamed);
  store::remove_folder_and_files(disk_, renamed);
}

// config.json, which marks the folder as a run's, goes last.
void RunFolder::remove_old_run() {
  for (const std::string& why : store::remove_all(disk_, checkpoints_, run_)) {
    base::log_warning("--overwrite left alone: {}", why);
  }
  metrics::remove_event_files(event_folder(dir_));
  if (replaces_tokenizer()) disk_.remove_file(tokenizer_file(dir_));
  for (const std::string& path :
       {metrics_file(dir_), store::final_model(dir_), trace_file(dir_), dir_ + "/config.json"}) {
    disk_.remove_file(path);
  }
}

// Nothing of these is in use while the lock is held.
void RunFolder::remove_leftovers() {
  for (const std::string& failure : store::remove_leftovers(disk_, checkpoints_)) {
    base::log_warning("a leftover of an earlier start stays: {}", failure);
  }
  disk_.remove_file(requeue_file(dir_));
  for (const std::string& file :
       {store::final_model(dir_), dir_ + "/config.json", requeue_file(dir_), metrics_file(dir_),
        tokenizer_file(dir_), trace_file(dir_), shared_file(dir_)}) {
    base::remove_temporaries_of(file, ErrorKind::checkpoint);
  }
}

void RunFolder::write_config() const {
  write_file(dir_ + "/config.json", config::saved_text(config_, record_));
}

}  // namespace dtrain::job
