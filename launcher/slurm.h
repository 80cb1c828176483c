// Takes from a SLURM step what the command line does not say.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/slurm_step.h"
#include "launcher/options.h"

namespace launcher {

/// Where srun started one dtrun per node: the number of nodes, which one this is, and where they
/// meet, unless the command line says how many nodes there are; and without -n a rank for each of
/// the step's GPUs on this node, else for each of its cores. `given` holds the options of the
/// command line, and gets those that were filled in.
///
/// Throws: Error{usage} for several tasks per node, or if the first node's address is unknown.
void take_from_slurm(const dtrain::base::SlurmStep& step, Options& options,
                     std::vector<std::string>& given);

}  // namespace launcher
