// Settings of a run that is resumed or forked: its own, as far as the command does not give others.
#pragma once

#include <string>

#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::config {

/// Settings that a start inherits, and where they stand.
struct RunSettings {
  std::string path;  ///< of config.json, or of a checkpoint's manifest
  SavedRun saved;
};

struct ContinuedRun {
  Loaded loaded;
  std::string notice;  ///< one line: where settings come from, and what does not fit any more
};

/// The settings of `run` under those of the command, fit to this launch: the batch is the run's
/// wherever that is possible, so that the bits are too, and a layout for another number of ranks
/// gives way to one that all ranks here can have, as does a backend that cannot serve the ranks. A
/// --strategy of the command replaces the whole layout of the run; overwrite, resume, strict-resume,
/// new-data and time-limit are not taken, nor is init-from where the command resumes from a path or
/// with new-data.
///
/// given: what the command alone says.
/// Throws: Error{usage} as load and resolve_layout, or naming run.path for a device that this build
///         lacks.
[[nodiscard]] ContinuedRun continue_run(const CommandLine& command_line, const Loaded& given,
                                        const RunSettings& run, const Launch& launch);

}  // namespace dtrain::config
