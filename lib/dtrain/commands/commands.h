// The commands of libdtrain.so, each from a resolved configuration to its end.
#pragma once

#include <functional>
#include <string_view>

#include "dtrain/config/saved_run.h"

namespace dtrain::commands {

/// Trains a model and writes the run folder; `record` goes to its config.json and metrics. Returns
/// the exit status: 0, or that of ErrorKind::interrupted when it was asked to stop early and has
/// saved (0 within a SLURM job).
///
/// Collective: every rank of the job.
/// Throws:     as train::Trainer, job::make_world, job::Job, train::load_start and job::RunFolder.
[[nodiscard]] int train(const config::Config& config, const config::StartRecord& record);

/// Takes results as they come; the library itself never writes to standard output.
using Output = std::function<void(std::string_view)>;

/// Checks golden numbers and gives one JSON object to `output`, on rank 0.
///
/// Collective: every rank of the job.
/// Throws:     Error{numerics} naming the worst check if one is beyond its tolerance; as job::Job
/// and train::verify.
void verify(const config::Config& config, const Output& output);

}  // namespace dtrain::commands
