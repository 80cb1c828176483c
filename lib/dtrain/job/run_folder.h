// The folder of a run, as the rank that leads holds it, and the proof that all ranks share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/run_lock.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::job {

/// Makes a folder this job's until destruction: creates it if there is none, takes its lock, and
/// removes leftovers of killed jobs. If no run was started or resumed by then, removes the lock and
/// the created folders, so that a rejected start leaves nothing.
///
/// Throws: Error{usage} as config::check_run_folder and store::check_run_files, or if another job
///         holds the folder;
///         Error{checkpoint} naming a path that cannot be written or removed.
class RunFolder {
 public:
  /// run: the job's name, part of temporary names. record: for config.json. made: folders that
  /// were created for it so far.
  RunFolder(const config::Config& config, std::string run, config::StartRecord record = {},
            base::NewFolders made = {});

  /// Throws: Error{checkpoint} if the path now refers to another folder, or the lock's path to another
  ///         lock: they are another job's.
  void check() const;

  /// Starts a run at step 0: with overwrite removes what the old one wrote, and nothing else, once
  /// it is known that the new one can write what it will. A tokenizer.model goes only if the old
  /// run's final model names it: another may be somebody's.
  /// Writes config.json, which does not overwrite when it is used again, and keeps `tokenizer`, the
  /// model of that of the run's data, as tokenizer.model; an empty one is none.
  ///
  /// Throws: as check(); also Error{usage} if --resume auto found nothing to go on from in a run
  /// that is finished or has had checkpoints, or if another tokenizer.model is there: then nothing
  /// is removed.
  void begin(std::string_view tokenizer = {});

  /// Goes on after `step`: takes later checkpoints out of the way, but for unreadable ones, of which
  /// config.json tells, cuts metrics.jsonl back and writes config.json and tokenizer.model.
  ///
  /// Throws: as begin().
  [[nodiscard]] checkpoint::store::QuarantinedCheckpoints go_on(
      std::int64_t step, std::string_view tokenizer = {},
      const std::vector<std::int64_t>& unreadable = {});

  /// Leaves word that the run was stopped early and should be started again.
  void ask_for_requeue(std::int64_t step, const std::string& reason);

  [[nodiscard]] static std::string requeue_file(const std::string& run_dir) {
    return run_dir + "/REQUEUE";
  }
  [[nodiscard]] static std::string stop_file(const std::string& run_dir) {
    return run_dir + "/STOP";
  }
  [[nodiscard]] static std::string metrics_file(const std::string& run_dir) {
    return run_dir + "/metrics.jsonl";
  }
  [[nodiscard]] static std::string tokenizer_file(const std::string& run_dir) {
    return run_dir + "/tokenizer.model";
  }
  /// Of event files for TensorBoard.
  [[nodiscard]] static std::string event_folder(const std::string& run_dir) {
    return run_dir + "/tensorboard";
  }
  /// Of --profile, which finds its folder there.
  [[nodiscard]] static std::string trace_file(const std::string& run_dir) {
    return run_dir + "/profile/trace.json";
  }

 private:
  void check_is_new() const;
  void check_writable();
  void check_commits();
  void check_tokenizer(std::string_view model) const;
  void keep_tokenizer(std::string_view model) const;
  [[nodiscard]] bool replaces_tokenizer() const;
  void remove_old_run();
  void remove_leftovers();
  void write_config() const;
  void keep();

  config::Config config_;
  config::StartRecord record_;
  std::string run_;
  base::NewFolders made_;  // destroyed after the lock
  std::string dir_;
  std::string checkpoints_;
  std::unique_ptr<checkpoint::store::RunLock> lock_;
  base::HeldFolder held_;
  base::Disk disk_;
};

/// Opens the run folder on every rank, after each has seen a file in it that rank 0 has just made,
/// and that is gone on return. job: a name that no other start has.
///
/// Collective: every rank of `world`, once rank 0 has made the folder.
/// Throws:     Error{usage}, the same on every rank, naming the ranks that do not see rank 0's
///             folder; on rank 0 Error{checkpoint} if the file cannot be made.
[[nodiscard]] std::unique_ptr<base::HeldFolder> hold_shared_folder(comm::ProcessGroup& world,
                                                                   const std::string& run_dir,
                                                                   const std::string& job);

/// The files that hold_shared_folder makes are named as an AtomicFile's of this path: what a killed
/// job leaves of them is removed in the same way.
[[nodiscard]] inline std::string shared_file(const std::string& run_dir) {
  return run_dir + "/seen-by-all-ranks";
}

}  // namespace dtrain::job
