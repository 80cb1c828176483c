#include "dtrain/train/evaluator.h"

#include <algorithm>
#include <vector>

#include "dtrain/data/loader.h"

namespace dtrain::train {

parallel::StepLoss evaluate(Job& job, const data::Samples& validation) {
  const data::ValidationBatches batches(validation, job.config().batch.microbatch);
  const std::int64_t count = std::min(batches.size(), job.config().report.eval_batches);
  std::vector<data::Batch> mine;
  for (std::int64_t j = job.data_group().rank(); j < count; j += job.data_group().size()) {
    mine.push_back(batches[j]);
  }
  return job.engine().evaluate(mine, count);
}

}  // namespace dtrain::train
