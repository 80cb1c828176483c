// Settings of a launch that resumes or forks a run: the command's settings override the run's.
#pragma once

#include <string>

#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::config {

/// The run from which a launch inherits settings.
struct InheritedRun {
  std::string path;  ///< of config.json, or of a checkpoint's manifest
  SavedRun saved;
};

struct ResumedSettings {
  LoadedSettings loaded;
  std::string notice;  ///< one line: the source of the settings, and which were replaced
};

/// Merges the settings of `run` with those of the command, which take precedence, and adapts them
/// to this launch:
/// - The batch stays the run's if possible, so that the results stay bit-identical.
/// - A layout or backend that does not fit the number of ranks is replaced by one that does.
/// - A --strategy of the command replaces the whole layout of the run.
/// - overwrite, resume, strict-resume, new-data, time-limit and interface are not inherited, nor is
///   init-from if the command resumes from a path or with new-data.
///
/// given:  the settings of the command only.
/// Throws: Error{usage} as load and resolve_layout, or naming run.path for a device that this build
///         lacks.
[[nodiscard]] ResumedSettings resume_settings(const CommandLine& command_line,
                                              const LoadedSettings& given, const InheritedRun& run,
                                              const Launch& launch);

}  // namespace dtrain::config
