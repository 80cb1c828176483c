#include "dtrain/train/evaluator.h"

#include <algorithm>

#include "dtrain/data/loader.h"

namespace dtrain::train {

parallel::StepLoss evaluate(Job& job, const data::Samples& validation) {
  const data::ValidationBatches batches(validation, job.config().batch.microbatch);
  const std::int64_t count = std::min(batches.size(), job.config().report.eval_batches);
  return job.engine().evaluate(count, [&](std::int64_t number) { return batches[number]; });
}

}  // namespace dtrain::train
