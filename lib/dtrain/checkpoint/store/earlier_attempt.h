// The run that an earlier attempt of the same launch has begun.
#pragma once

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

/// The settings of a start that goes on with what the earlier attempt has left, whatever the
/// command says of --resume and --overwrite: from its newest checkpoint; without one, as the
/// command begins, in the same folder.
[[nodiscard]] config::Config going_on_with(config::Config config, const EarlierAttempt& earlier);

}  // namespace dtrain::checkpoint::store
