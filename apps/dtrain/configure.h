// From arguments to a resolved configuration: what train, generate and verify have in common.
#pragma once

#include <optional>

#include "commands.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/schema.h"

namespace dtrain::app {

struct Configured {
  config::Config config;  ///< resolved
  base::RankEnv env;
  config::BatchConfig asked_batch;  ///< as it was before it was resolved
  bool has_file = false;            ///< --config was given
};

/// Reads arguments, files and environment. Nothing is returned where --help or --print-config was
/// asked for, which it answers.
///
/// Throws: Error{usage} for whatever is wrong with them.
[[nodiscard]] std::optional<Configured> configure(config::Command command,
                                                  const Arguments& arguments);

}  // namespace dtrain::app
