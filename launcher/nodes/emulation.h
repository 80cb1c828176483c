// Runs the launchers of several nodes on this machine.
#pragma once

#include <functional>

#include "dtrain/base/descriptor.h"
#include "launcher/options.h"

namespace launcher {

/// Runs `run_node(options of a node, listener)` in a process for each of --emulate-nodes nodes,
/// passes signals on to all, and returns node 0's exit status when all have ended. They meet over
/// TCP at a free port of the loopback address, as on several machines.
///
/// Throws: Error{port} or Error{spawn} when nothing was started.
[[nodiscard]] int run_emulated(
    const Options& options, const std::function<int(Options, dtrain::base::Descriptor)>& run_node);

}  // namespace launcher
