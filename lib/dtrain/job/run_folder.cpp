#include "dtrain/job/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/job/internal/input_copies.h"
#include "dtrain/job/run_files.h"
#include "dtrain/metrics/event_file.h"
#include "dtrain/metrics/metrics_file.h"

namespace dtrain::job {
namespace {

namespace store = checkpoint::store;
using base::ErrorKind;

std::string create_folder(const config::Config& config, base::NewFolders& created) {
  config::check_run_folder(config);
  std::error_code error;
  created.add(config.run.dir, error);
  if (error) {
    base::fail_on_storage(
        ErrorKind::usage, error.value(),
        fmt::format("--run-dir {}: cannot create it: {}", config.run.dir, error.message()));
  }
  return config.run.dir;
}

// Creates and locks the folder; retries if a rejected job has just removed it.
std::unique_ptr<store::RunLock> locked_folder(const config::Config& config,
                                              base::NewFolders& created) {
  for (int tries_left = 3;; --tries_left) {
    const std::string folder = create_folder(config, created);
    try {
      return std::make_unique<store::RunLock>(folder);
    } catch (const base::Error&) {
      if (base::is_folder(folder) || tries_left == 0) throw;
    }
  }
}

// True if the folder has the settings and metrics of a run that saves its last step. If such a run
// has no checkpoint it is incomplete: the disk had room for the final model, but not for the
// checkpoint.
bool lacks_last_step(const std::string& run_dir) {
  const std::string path = run_dir + "/config.json";
  return base::path_exists(path) && base::path_exists(metrics_file(run_dir)) &&
         config::read_saved_run(path).resolved.checkpoint.every.at_the_end;
}

void add_folder(base::NewFolders& created, const std::string& path) {
  std::error_code error;
  created.add(path, error);
  if (!error) return;
  base::fail_on_storage(ErrorKind::checkpoint, error.value(),
                        fmt::format("'{}' cannot be created ({})", path, error.message()));
}

void write_file(const std::string& path, std::string_view text) {
  base::write_atomically(path, ErrorKind::checkpoint, text);
}

// NFS clients cache a failed lookup for half a minute unless the folder is opened, which
// revalidates the cache.
void open_nearest_folder(std::filesystem::path path) {
  base::Descriptor folder;
  while (folder.get() < 0 && path.has_relative_path()) {
    path = path.parent_path();
    folder = base::Descriptor(
        ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK));
  }
}

// Network file systems may show a new name a moment later on other machines.
bool becomes_visible(const std::string& path) {
  constexpr std::chrono::milliseconds kPause(20);
  constexpr base::Seconds kTimeout(5);
  const auto begin = base::Clock::now();
  while (::access(path.c_str(), F_OK) != 0) {
    open_nearest_folder(path);
    if (base::seconds_since(begin) > kTimeout.count()) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// Returns the ranks that do not see the file; equal on all ranks.
std::vector<std::size_t> ranks_not_seeing(comm::ProcessGroup& world, const std::string& path) {
  bool is_seen = false;
  comm::run_long(world, "looking for the run folder", [&] { is_seen = becomes_visible(path); });
  std::vector<std::size_t> without_file;
  const auto answers = comm::exchange_texts(world, is_seen ? "" : "no");
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty()) without_file.push_back(rank);
  }
  return without_file;
}

}  // namespace

RunFolder::RunFolder(const config::Config& config, std::string run, config::StartRecord record,
                     base::NewFolders created)
    : config_(config),
      record_(std::move(record)),
      run_(std::move(run)),
      created_(std::move(created)),
      dir_(config.run.dir),
      checkpoints_(store::checkpoints_folder(dir_)),
      lock_(locked_folder(config, created_)),
      held_(dir_, ErrorKind::checkpoint),
      disk_(held_, ErrorKind::checkpoint) {
  // Checked again, now that no other job can change the folder.
  config::check_run_folder(config_);
  store::check_run_files(dir_, config::overwriting_flag(config_));
  remove_leftovers();
}

void RunFolder::keep() {
  created_.keep();
  lock_->keep();
}

void RunFolder::check() const {
  held_.check();
  if (!lock_->is_replaced()) return;
  base::fail(ErrorKind::checkpoint,
             "'{}/lock' no longer belongs to this job: another job has taken the folder; this job "
             "writes nothing more to it",
             dir_);
}

void RunFolder::begin(std::string_view tokenizer, const std::vector<store::KeptFile>& kept) {
  if (config_.checkpoint.resume.is_automatic()) {
    check_is_new();
    if (base::path_exists(dir_ + "/config.json") && !record_.is_quiet) {
      base::log_info(
          "{} holds a run without a checkpoint: starting again at step 0 with this command's "
          "settings",
          dir_);
    }
  }
  check_tokenizer(dir_, tokenizer, config_.run.overwrite);
  check_writable();
  if (config_.run.overwrite) remove_old_run();
  write_config();
  keep_tokenizer(dir_, tokenizer);
  replace_kept_files(disk_, dir_, kept);
  keep();
}

// Called if there is no checkpoint. A run that has had checkpoints would lose its metrics if it
// started over. A final model stays until the new run's replaces it.
void RunFolder::check_is_new() const {
  if (base::path_exists(store::final_model(dir_)) && !lacks_last_step(dir_)) {
    base::fail(
        ErrorKind::usage,
        "--resume auto: {} holds a finished run without checkpoints, which cannot be resumed: "
        "use another folder (with --init-from {} to continue training its weights), or replace "
        "it with --overwrite instead of --resume auto",
        dir_, dir_);
  }
  const std::string path = metrics_file(dir_);
  const std::string checkpoint = metrics::last_checkpoint(path);
  if (checkpoint.empty()) return;
  base::fail(
      ErrorKind::usage,
      "--resume auto: {} records checkpoint {}, but {} holds no checkpoint: restore the recorded "
      "one, or use another folder (with --resume CHECKPOINT to resume from a checkpoint), or start "
      "over with --overwrite instead of --resume auto",
      path, checkpoint, checkpoints_);
}

store::QuarantinedCheckpoints RunFolder::resume(std::int64_t step, std::string_view tokenizer,
                                                const std::vector<std::int64_t>& unreadable,
                                                const std::vector<store::KeptFile>& kept) {
  check_tokenizer(dir_, tokenizer, config_.run.overwrite);
  check_writable();
  auto aside = store::quarantine_after(disk_, checkpoints_, step, run_, unreadable);
  metrics::cut_back(metrics_file(dir_), step);
  record_.skipped = {.run = run_, .steps = unreadable};
  write_config();
  keep_tokenizer(dir_, tokenizer);
  replace_kept_files(disk_, dir_, kept);
  keep();
  return aside;
}

void RunFolder::request_requeue(std::int64_t step, const std::string& reason) {
  check();
  write_file(requeue_file(dir_), fmt::format("stopped after step {} by {}\n", step, reason));
  try {
    disk_.remove_file(stop_file(dir_));
  } catch (const base::Error& error) {
    base::log_warning("cannot remove the stop request, so the next start will stop at once: {}",
                      error.what());
  }
}

// Fails at the start if the run could not write its files later.
void RunFolder::check_writable() {
  check();
  const std::string model = store::final_model(dir_);
  {
    base::NewFolders created;
    add_folder(created, base::parent_folder(model));
    const base::AtomicFile probe(model, ErrorKind::checkpoint);
  }
  const auto access = [&] { return ::access(checkpoints_.c_str(), R_OK | W_OK | X_OK); };
  if (base::path_exists(checkpoints_) && base::retry_transient(checkpoints_, access) != 0) {
    const int reason = errno;
    base::fail_on_storage(
        ErrorKind::checkpoint, reason,
        fmt::format("'{}' cannot be written ({})", checkpoints_, std::strerror(reason)));
  }
  check_commits();
  if (config_.report.profile > 0) disk_.make_folder(base::parent_folder(trace_file(dir_)));
}

// Tests what a commit needs of the file system: renaming a folder, and fsync.
void RunFolder::check_commits() {
  base::NewFolders created;
  add_folder(created, checkpoints_);
  // Temporary names, which the next start removes as leftovers.
  const std::string folder = store::temporary_folder(checkpoints_, 0, run_);
  const std::string renamed = store::temporary_folder(checkpoints_, 1, run_);
  disk_.make_folder(folder);
  base::write_with_retries(disk_, fmt::format("{}/{}", folder, store::kManifestName),
                           [](base::OutputFile&) {});
  disk_.rename(folder, renamed);
  disk_.sync_folder(renamed);
  store::remove_folder_and_files(disk_, renamed);
}

// config.json, which marks a run folder, is removed last.
void RunFolder::remove_old_run() {
  for (const std::string& why : store::remove_all(disk_, checkpoints_, run_)) {
    base::log_warning("--overwrite did not remove: {}", why);
  }
  metrics::remove_event_files(event_folder(dir_));
  remove_old_tokenizer(disk_, dir_);
  for (const std::string& path :
       {metrics_file(dir_), store::final_model(dir_), trace_file(dir_), dir_ + "/config.json"}) {
    disk_.remove_file(path);
  }
}

// While the lock is held, no other job uses these.
void RunFolder::remove_leftovers() {
  for (const std::string& failure : store::remove_leftovers(disk_, checkpoints_)) {
    base::log_warning("cannot remove a leftover of an earlier start: {}", failure);
  }
  disk_.remove_file(requeue_file(dir_));
  for (const std::string& file :
       {store::final_model(dir_), dir_ + "/config.json", requeue_file(dir_), metrics_file(dir_),
        trace_file(dir_), shared_file(dir_)}) {
    base::remove_temporaries_of(file, ErrorKind::checkpoint);
  }
  remove_temporary_copies(dir_);
}

void RunFolder::write_config() const {
  write_file(dir_ + "/config.json", config::config_file_text(config_, record_));
}

std::unique_ptr<base::HeldFolder> hold_shared_folder(comm::ProcessGroup& world,
                                                     const std::string& run_dir,
                                                     const std::string& job) {
  if (world.size() > 1) {
    const std::string path = fmt::format("{}.tmp-{}", shared_file(run_dir), job);
    base::Disk disk(ErrorKind::checkpoint);
    comm::run_long_on_leader(world, "writing to the run folder", [&] {
      base::write_with_retries(disk, path, [](base::OutputFile&) {});
    });
    const std::vector<std::size_t> without_file = ranks_not_seeing(world, path);
    comm::run_long_on_leader(world, "writing to the run folder", [&] { disk.remove_file(path); });
    if (!without_file.empty()) {
      base::fail(ErrorKind::usage,
                 "--run-dir {}: {} of {} {} not see rank 0's folder, and every rank writes "
                 "its part of a checkpoint there; use a folder that all machines share",
                 run_dir, base::ranks_text(without_file), world.size(),
                 without_file.size() == 1 ? "does" : "do");
    }
  }
  return std::make_unique<base::HeldFolder>(run_dir, ErrorKind::checkpoint);
}

}  // namespace dtrain::job
