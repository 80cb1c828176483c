// RUN/final/model.safetensors: the trained weights under the reference's names and shapes.
#pragma once

#include <string>

#include "dtrain/train/job.h"

namespace dtrain::train {

/// Rank 0 holds all parameters in full meanwhile.
///
/// Collective: every rank of the world.
/// Throws:     Error{checkpoint} naming the file if it cannot be written.
void write_final_model(Job& job, const std::string& path);

}  // namespace dtrain::train
