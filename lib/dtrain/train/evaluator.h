// The loss on held-out text.
#pragma once

#include "dtrain/data/split.h"
#include "dtrain/train/job.h"

namespace dtrain::train {

/// The loss over the first report.eval_batches microbatches of `validation`, in file order, without
/// dropout. Batch j is computed by rank j mod dp; the result has the same bits for every dp.
///
/// Collective: over the data group.
[[nodiscard]] parallel::StepLoss evaluate(Job& job, const data::Samples& validation);

}  // namespace dtrain::train
