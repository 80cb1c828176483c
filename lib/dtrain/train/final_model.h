// RUN/final/model.safetensors: the trained weights under the reference's names and shapes.
#pragma once

#include <functional>
#include <string>

#include "dtrain/job/job.h"

namespace dtrain::train {

/// One unit of the parameters is in memory in full at a time. `check`: called on rank 0 before the
/// file is begun and again before it takes its name; throws if the folder must not be written to.
///
/// Collective: every rank of the world.
/// Throws:     Error{checkpoint} naming the file if it cannot be written; what `check` throws.
void write_final_model(job::Job& job, const std::string& path, const std::function<void()>& check);

}  // namespace dtrain::train
