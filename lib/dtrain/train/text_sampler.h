// Generates text with the model that is being trained.
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

/// Returns the tokenizer of the training data; null if the run generates no samples.
///
/// Throws: Error{usage} naming the setting if samples are impossible: the data has no tokenizer, or
///         the model has too few positions; Error{data} as prompt_tokens.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> sample_tokenizer(const config::Config& config,
                                                                      const data::Split& split);

/// Checks that --memory-limit leaves room for samples. No-op on a device, where the limit bounds
/// allocations themselves. planned: rank 0's memory plan.
///
/// Throws: Error{usage} naming the bytes if there is too little room.
void check_sample_memory(const config::Config& config, const parallel::MemoryPlan& planned,
                         const model::Model& model);

/// Generates the text that `dtrain generate` would give for the current weights with
/// --sample-prompt, --seed and default settings. Under any layout, rank 0 holds a copy of the whole
/// model during the call. The run's state does not change.
///
/// Collective: every rank of the world.
/// Throws:     Error{numerics} if logits are not finite.
/// Returns:    the prompt and its continuation; empty on ranks other than 0.
[[nodiscard]] std::string sample_text(const TrainContext& context);

}  // namespace dtrain::train
