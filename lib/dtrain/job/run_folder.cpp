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
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/data/tokenizer/tokenizer.h"
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
  return base::path_exists(path) && base::path_exists(RunFolder::metrics_file(run_dir)) &&
         config::read_saved_run(path).resolved.checkpoint.every.at_the_end;
}

void add_folder(base::NewFolders& made, const std::string& path) {
  std::error_code error;
  made.add(path, error);
  if (!error) return;
  base::fail_on_storage(ErrorKind::checkpoint, error.value(),
                        fmt::format("'{}' cannot be created ({})", path, error.message()));
}

void write_file(const std::string& path, std::string_view text) {
  base::write_atomically(path, ErrorKind::checkpoint, text);
}

// A client of NFS that has looked for a name in vain believes so for half a minute, unless it opens
// the folder: then it asks the server whether that has changed.
void open_nearest_folder(std::filesystem::path path) {
  base::Descriptor folder;
  while (folder.get() < 0 && path.has_relative_path()) {
    path = path.parent_path();
    folder = base::Descriptor(
        ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK));
  }
}

// Network file systems may show a new name a moment later on other machines.
bool appears(const std::string& path) {
  constexpr std::chrono::milliseconds kPause(20);
  constexpr base::Seconds kPatience(5);
  const auto begin = base::Clock::now();
  while (::access(path.c_str(), F_OK) != 0) {
    open_nearest_folder(path);
    if (base::seconds_since(begin) > kPatience.count()) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// The ranks that do not see the file; equal on all ranks.
std::vector<std::size_t> blind_ranks(comm::ProcessGroup& world, const std::string& path) {
  bool is_seen = false;
  comm::run_long(world, "looking for the run folder", [&] { is_seen = appears(path); });
  std::vector<std::size_t> blind;
  const auto answers = comm::exchange_texts(world, is_seen ? "" : "no");
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty()) blind.push_back(rank);
  }
  return blind;
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
    if (base::path_exists(dir_ + "/config.json") && !record_.is_quiet) {
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
  if (base::path_exists(store::final_model(dir_)) && !lacks_last_step(dir_)) {
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

void RunFolder::check_tokenizer(std::string_view model) const {
  const std::string path = tokenizer_file(dir_);
  if (model.empty() || !base::path_exists(path) || base::content_of(path, kTokenizerFile) == model)
    return;
  if (config_.run.overwrite && replaces_tokenizer()) return;
  base::fail(ErrorKind::usage,
             "'{}' is not the tokenizer of the run's data, which would replace it; move it, or "
             "name another --run-dir",
             path);
}

void RunFolder::keep_tokenizer(std::string_view model) const {
  const std::string path = tokenizer_file(dir_);
  if (!model.empty() && !base::path_exists(path)) write_file(path, model);
}

// Whether tokenizer.model is that of the old run's final model.
bool RunFolder::replaces_tokenizer() const {
  const std::string model = store::final_model(dir_);
  const std::string path = tokenizer_file(dir_);
  if (!base::path_exists(model) || !base::path_exists(path)) return false;
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

// Finds at the start what cannot be written at the end.
void RunFolder::check_writable() {
  check();
  const std::string model = store::final_model(dir_);
  {
    base::NewFolders made;
    add_folder(made, base::parent_folder(model));
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

// Tries what a commit needs of the file system: renaming a folder, and fsync.
void RunFolder::check_commits() {
  base::NewFolders made;
  add_folder(made, checkpoints_);
  // Names of leftovers, which the next start removes.
  const std::string folder = store::temporary_folder(checkpoints_, 0, run_);
  const std::string renamed = store::temporary_folder(checkpoints_, 1, run_);
  disk_.make_folder(folder);
  base::write_with_retries(disk_, fmt::format("{}/{}", folder, store::kManifestName),
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

std::unique_ptr<base::HeldFolder> hold_shared_folder(comm::ProcessGroup& world,
                                                     const std::string& run_dir,
                                                     const std::string& job) {
  if (world.size() > 1) {
    const std::string path = fmt::format("{}.tmp-{}", shared_file(run_dir), job);
    base::Disk disk(ErrorKind::checkpoint);
    comm::run_long_on_leader(world, "writing to the run folder", [&] {
      base::write_with_retries(disk, path, [](base::OutputFile&) {});
    });
    const std::vector<std::size_t> blind = blind_ranks(world, path);
    comm::run_long_on_leader(world, "writing to the run folder", [&] { disk.remove_file(path); });
    if (!blind.empty()) {
      base::fail(ErrorKind::usage,
                 "--run-dir {}: {} of {} {} not see rank 0's folder, and every rank writes "
                 "its part of a checkpoint there; name a folder that all machines share",
                 run_dir, base::ranks_text(blind), world.size(), blind.size() == 1 ? "does" : "do");
    }
  }
  return std::make_unique<base::HeldFolder>(run_dir, ErrorKind::checkpoint);
}

}  // namespace dtrain::job
