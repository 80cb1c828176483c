// Manages the run folder on rank 0, and checks that all ranks share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/kept_files.h"
#include "dtrain/checkpoint/store/run_lock.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::job {

/// Owns a run folder until destruction: creates it if missing, locks it, and removes leftovers of
/// killed jobs. If no run was started or resumed, the destructor removes the lock and the created
/// folders, so a rejected start leaves nothing behind.
///
/// Throws: Error{usage} as config::check_run_folder and store::check_run_files, or if another job
///         has locked the folder; Error{checkpoint} naming a path that cannot be written or
///         removed.
class RunFolder {
 public:
  /// run: the job's name, used in temporary names. record: saved in config.json. created: folders
  /// that were already created for the run folder.
  RunFolder(const config::Config& config, std::string run, config::StartRecord record = {},
            base::NewFolders created = {});

  /// Checks that the run folder and its lock still belong to this job.
  ///
  /// Throws: Error{checkpoint} if the run folder's path or the lock's path now refers to another
  ///         file.
  void check() const;

  /// Starts a run at step 0. With overwrite, checks that the new run can write its files, then
  /// removes exactly the files that the old run wrote; removes a tokenizer only if the old run's
  /// final model names it, because it may otherwise be a user's file. Writes config.json without
  /// the overwrite setting. Saves `tokenizer`, the model of the tokenizer of the run's data, in the
  /// files of data::files_of_tokenizer. Replaces the files in kept_files_folder by `kept`, those of
  /// the folder that the weights come from.
  ///
  /// Throws: as check(). Error{usage}, before anything is removed, if --resume auto found no
  ///         checkpoint in a run that is finished or has had checkpoints, or if the folder holds a
  ///         different tokenizer.
  void begin(std::string_view tokenizer = {},
             const std::vector<checkpoint::store::KeptFile>& kept = {});

  /// Resumes after `step`: quarantines later checkpoints, except unreadable ones, which config.json
  /// lists; truncates metrics.jsonl; writes config.json, the tokenizer and `kept`.
  ///
  /// Throws: as begin().
  [[nodiscard]] checkpoint::store::QuarantinedCheckpoints resume(
      std::int64_t step, std::string_view tokenizer = {},
      const std::vector<std::int64_t>& unreadable = {},
      const std::vector<checkpoint::store::KeptFile>& kept = {});

  /// Writes the file REQUEUE, which says that the run was stopped early and should be restarted.
  void request_requeue(std::int64_t step, const std::string& reason);

 private:
  void check_is_new() const;
  void check_writable();
  void check_commits();
  void remove_old_run();
  void remove_leftovers();
  void write_config() const;
  void keep();

  config::Config config_;
  config::StartRecord record_;
  std::string run_;
  base::NewFolders created_;  // destroyed after the lock
  std::string dir_;
  std::string checkpoints_;
  std::unique_ptr<checkpoint::store::RunLock> lock_;
  base::HeldFolder held_;
  base::Disk disk_;
};

/// Opens the run folder on every rank. First checks that each rank sees a temporary file that rank
/// 0 creates in it. job: a name unique to this start.
///
/// Collective: every rank of `world`, after rank 0 has created the folder.
/// Throws:     Error{usage}, equal on every rank, naming the ranks that do not see rank 0's folder;
///             on rank 0 Error{checkpoint} if the file cannot be created.
[[nodiscard]] std::unique_ptr<base::HeldFolder> hold_shared_folder(comm::ProcessGroup& world,
                                                                   const std::string& run_dir,
                                                                   const std::string& job);

/// Base path of hold_shared_folder()'s temporary files. They are named like an AtomicFile's, so
/// leftovers of killed jobs are removed in the same way.
[[nodiscard]] inline std::string shared_file(const std::string& run_dir) {
  return run_dir + "/seen-by-all-ranks";
}

}  // namespace dtrain::job
