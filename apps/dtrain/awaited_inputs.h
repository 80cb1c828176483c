// The input files that a restart waits for.
#pragma once

#include "dtrain/config/command_line.h"

namespace dtrain::app {

/// Waits, at a start after a failed attempt, for what that attempt's run has read and this one will
/// read again: a path that is missing now lies on a mount that is away. Only a run that has begun,
/// or committed a checkpoint, tells of an attempt that had its inputs; otherwise nothing is awaited.
///
/// Throws: StorageError naming the path that stays away; its status lets the launcher try again.
///         Error{usage} as config::with_deepspeed and config::load.
void await_inputs(const config::CommandLine& command_line);

}  // namespace dtrain::app
