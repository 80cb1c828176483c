// A pipeline schedule as a picture of text.
#pragma once

#include <string>

#include "dtrain/parallel/pipeline/simulate.h"

namespace dtrain::app {

/// A row for each stage, a column for the time of one forward; a backward takes two columns.
[[nodiscard]] std::string schedule_grid(const parallel::PipelineShape& shape,
                                        const parallel::Simulation& simulation);

}  // namespace dtrain::app
