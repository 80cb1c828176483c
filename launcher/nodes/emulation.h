// Runs the launchers of several nodes on this machine.
#pragma once

#include <functional>

#include "dtrain/base/io/descriptor.h"
#include "launcher/options.h"

namespace launcher {

/// What a node of an emulated job is given.
struct EmulatedStart {
  dtrain::base::Descriptor listener;  // node 0's
  dtrain::base::Descriptor meeting;   // to be closed once all nodes have met
};

/// Runs `run_node(options of a node, its start)` in a process for each of --emulate-nodes nodes,
/// passes signals on to all, and returns node 0's exit status when all have ended. They meet over
/// TCP at a free port of the loopback address, as on several machines. If one ends before they have
/// met, nobody can start it again: the others are ended, and its status counts.
///
/// Throws: Error{port} or Error{spawn} when nothing was started.
[[nodiscard]] int run_emulated(const Options& options,
                               const std::function<int(Options, EmulatedStart)>& run_node);

}  // namespace launcher
