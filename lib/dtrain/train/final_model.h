// RUN/final/model.safetensors: the trained weights under the reference's names and shapes.
#pragma once

#include <string>

#include "dtrain/train/job.h"

namespace dtrain::train {

/// One unit of the parameters is in memory in full at a time.
///
/// Collective: every rank of the world.
/// Throws:     Error{checkpoint} naming the file if it cannot be written.
void write_final_model(Job& job, const std::string& path);

}  // namespace dtrain::train
