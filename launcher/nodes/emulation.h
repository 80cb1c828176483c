// Emulates several nodes on this machine (--emulate-nodes): runs one launcher process per node.
#pragma once

#include <functional>

#include "dtrain/base/io/descriptor.h"
#include "launcher/options.h"

namespace launcher {

/// Descriptors that an emulated node inherits.
struct EmulatedStart {
  dtrain::base::Descriptor listener;    // node 0's
  dtrain::base::Descriptor rendezvous;  // to be closed once all nodes have joined
};

/// Runs `run_node(options of a node, its start)` in a process for each of --emulate-nodes nodes,
/// forwards signals to all, and returns node 0's exit status when all have ended. The rendezvous
/// uses TCP at a free port of the loopback address, as on several machines. If a node ends before
/// the rendezvous is complete, it cannot be restarted: the others are killed, and its status is
/// returned.
///
/// Throws: Error{port} or Error{spawn} when nothing was started.
[[nodiscard]] int run_emulated(const Options& options,
                               const std::function<int(Options, EmulatedStart)>& run_node);

}  // namespace launcher
