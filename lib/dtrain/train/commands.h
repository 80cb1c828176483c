// The commands of libdtrain.so, each from a resolved configuration to its end.
#pragma once

#include "dtrain/config/config.h"

namespace dtrain::train {

/// Trains a model and writes the run folder.
///
/// Collective: every rank of the job.
/// Throws:     as Trainer, make_world and Job.
void train(const config::Config& config);

}  // namespace dtrain::train
