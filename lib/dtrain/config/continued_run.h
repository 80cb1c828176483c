// Settings of a run that goes on: its own, as far as the command does not give others.
#pragma once

#include <optional>
#include <string>

#include "dtrain/config/command_line.h"
#include "dtrain/config/resolve.h"

namespace dtrain::config {

struct ContinuedRun {
  Loaded loaded;
  std::string notice;  ///< one line: where settings come from, and what does not fit any more
};

/// With --resume auto and neither --config nor --data, the settings of RUN/config.json under those
/// of the command, fit to this launch: the batch is the run's wherever that is possible, so that
/// the bits are too, and a layout for another number of ranks gives way to one that all ranks here
/// can have, as does a backend that cannot serve the ranks. Layout settings of the command replace
/// all of the run's; overwrite, resume, strict-resume and time-limit are not taken. Nothing where
/// the command does not go on with a run folder that has a config.json.
///
/// given: what the command alone says.
/// Throws: Error{usage} naming config.json if it cannot be read, or as load and resolve_layout.
[[nodiscard]] std::optional<ContinuedRun> continue_run(const CommandLine& command_line,
                                                       const Loaded& given, const Launch& launch);

}  // namespace dtrain::config
