#include "dtrain/train/evaluate.h"

namespace dtrain::train {

std::optional<double> evaluate(parallel::StepEngine& engine,
                               const data::EvaluationSequences& sequences, std::int64_t batch_size,
                               const std::function<bool()>& wants_stop) {
  const auto loss = engine.evaluate(
      {.num_sequences = sequences.size(),
       .length = sequences.length(),
       .batch_size = batch_size,
       .read = [&](std::int64_t first, std::int64_t count) { return sequences.read(first, count); },
       .wants_stop = wants_stop});
  return loss ? std::optional(loss->mean()) : std::nullopt;
}

}  // namespace dtrain::train
