#include "dtrain/train/evaluator.h"

namespace dtrain::train {

std::optional<double> evaluate(job::Job& job, const data::EvaluationSequences& sequences,
                               const std::function<bool()>& wants_stop) {
  const auto loss = job.engine().evaluate(
      {.num_sequences = sequences.size(),
       .length = job.config().data.seq_len,
       .batch_size = job.config().batch.microbatch,
       .read = [&](std::int64_t first, std::int64_t count) { return sequences.read(first, count); },
       .wants_stop = wants_stop});
  return loss ? std::optional(loss->mean()) : std::nullopt;
}

}  // namespace dtrain::train
