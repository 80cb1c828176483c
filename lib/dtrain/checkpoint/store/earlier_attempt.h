// Finds the run that an earlier attempt of this launch began, so that a restart resumes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/config/config.h"

namespace dtrain::checkpoint::store {

/// A run begun by an earlier attempt.
struct EarlierAttempt {
  std::string run_dir;
  bool has_checkpoint = false;
};

/// Finds the run that an earlier attempt began: its config.json records this launch ID and command
/// line. If config.run.dir is not set, searches the folders that such a command creates.
///
/// provenance: provenance of this start, as its config.json will record it. If it has no launch ID
///             or is not a restart, there is no earlier attempt.
/// Throws:     Error{checkpoint} if the run's checkpoints folder cannot be read.
[[nodiscard]] std::optional<EarlierAttempt> find_earlier_attempt(const config::Config& config,
                                                                 std::string_view provenance);

/// Returns a key by which dtrun identifies the run: equal for all starts of one command, different
/// for other commands of the same script. provenance: provenance of this start.
[[nodiscard]] std::string run_key(std::string_view provenance);

/// Fails a start that would begin at step `found` (negative: no checkpoint of this job) although an
/// earlier attempt committed step `committed`.
///
/// Throws: StorageError; its exit status makes the launcher retry, because a mount may come back.
[[noreturn]] void refuse_rollback(const std::string& run_dir, std::int64_t found,
                                  std::int64_t committed);

/// If an attempt of this launch has committed a step, checks that the restart's run folder was
/// written by this launch. committed: the last committed step; negative: none.
///
/// Throws: as refuse_rollback.
void check_run_of_launch(const config::Config& config, std::string_view provenance,
                         std::int64_t committed);

/// Returns the settings with which a restart continues the earlier attempt, overriding --resume and
/// --overwrite: it resumes from the newest checkpoint; without one, it begins as the command does,
/// in the same folder.
[[nodiscard]] config::Config resume_settings(config::Config config, const EarlierAttempt& earlier);

}  // namespace dtrain::checkpoint::store
