// Has the model that is being trained write a text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/config/config.h"
#include "dtrain/data/split.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/parallel/memory.h"
#include "dtrain/train/internal/train_context.h"

namespace dtrain::train {

/// The tokenizer of the training data, where the run writes samples, else null.
///
/// Throws: Error{usage} naming the setting, if this data or prompt gives no samples: tokens without
///         their tokenizer, more positions than the model has; Error{data} for a prompt that is not
///         UTF-8 under a tokenizer that needs it.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> sample_tokenizer(const config::Config& config,
                                                                      const data::Split& split);

/// planned: rank 0's memory plan. Does nothing on a device, where the limit bounds
/// allocations themselves.
///
/// Throws: Error{usage} if samples need more memory than --memory-limit leaves.
void check_sample_memory(const config::Config& config, const parallel::MemoryPlan& planned,
                         const model::Model& model);

/// Writes what `dtrain generate` would from the weights as they are, with --sample-prompt, --seed
/// and its own defaults. Rank 0 holds a copy of the whole model meanwhile, whatever the layout;
/// nothing of the run changes.
///
/// Collective: every rank of the world.
/// Throws:     Error{numerics} if the model gives logits that are not finite.
/// Returns:    the prompt and what follows it; empty on ranks other than 0.
[[nodiscard]] std::string sample_text(const TrainContext& context);

}  // namespace dtrain::train
