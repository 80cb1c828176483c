// Sets the model's sizes to those that --match chooses.
#pragma once

#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/resolve.h"

namespace dtrain::app {

/// Chooses the model's sizes (config/match.h), except those that are flags, and stores them in
/// `loaded`. The sequence length, and the vocabulary if no data determines it, become those of the
/// matched model unless they are given. A run that resumes or restarts keeps the sizes in its
/// config.json; the matched model is then not read. Returns a line for the user about the sizes;
/// empty without --match.
///
/// loaded: files and flags; its vocabulary is that of the data.
/// Throws: Error{usage} naming --match and a run folder or file that cannot be read, or the nearest
///         sizes if no sizes match.
[[nodiscard]] std::string adopt_matched_sizes(const config::CommandLine& command_line,
                                              const config::Launch& launch,
                                              const base::RankEnv& env,
                                              config::LoadedSettings& loaded);

/// Rejects --match with --resume PATH or --init-from, whose weights have sizes already. given: the
/// settings of the command only.
///
/// Throws: Error{usage} naming both.
void check_match(const config::CommandLine& command_line, const config::Config& given);

}  // namespace dtrain::app
