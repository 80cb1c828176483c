// The run that an earlier attempt of the same launch has begun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/config/config.h"

namespace dtrain::checkpoint::store {

struct EarlierAttempt {
  std::string run_dir;
  bool has_checkpoint = false;
};

/// Looks for a run that an earlier attempt began: its config.json tells of the same launch (its
/// launcher gives each a name of its own) and the same command line. Without config.run.dir it
/// looks through the folders that such a command makes.
///
/// provenance: of this start, as its config.json will have it. Where it names no launch, or no
/// restart, there is no earlier attempt.
/// Throws: Error{checkpoint} if the run's folder of checkpoints cannot be read.
[[nodiscard]] std::optional<EarlierAttempt> find_earlier_attempt(const config::Config& config,
                                                                 std::string_view provenance);

/// Names the run of a start: equal for all starts of one command, different for another command of
/// the same script. provenance: of this start.
[[nodiscard]] std::string name_of_run(std::string_view provenance);

/// Refuses to begin at step `found` (negative: at no checkpoint of this job) after an attempt that
/// has committed a later one.
///
/// Throws: StorageError, whose status lets the launcher try again: a mount may come back.
[[noreturn]] void refuse_below(const std::string& run_dir, std::int64_t found,
                               std::int64_t committed);

/// Refuses a restart whose run folder no attempt of this launch has written, although one has
/// committed the step `committed`; negative: none has.
///
/// Throws: as refuse_below.
void check_is_of_launch(const config::Config& config, std::string_view provenance,
                        std::int64_t committed);

/// The settings of a start that goes on with what the earlier attempt has left, whatever the
/// command says of --resume and --overwrite: from its newest checkpoint; without one, as the
/// command begins, in the same folder.
[[nodiscard]] config::Config going_on_with(config::Config config, const EarlierAttempt& earlier);

}  // namespace dtrain::checkpoint::store
