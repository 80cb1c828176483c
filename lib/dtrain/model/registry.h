// The table of models by name.
#pragma once

#include <memory>

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"
#include "dtrain/model/tensor_place.h"

namespace dtrain::model {

/// The model that `config.name` names, for sequences of up to seq_len tokens,
/// as much of it as a rank at `place` holds.
///
/// Throws: Error{usage} for an unknown name, and for a tensor axis that the model cannot be cut
/// for.
[[nodiscard]] std::unique_ptr<Model> make_model(const config::ModelConfig& config,
                                                std::int64_t seq_len,
                                                const TensorPlace& place = {});

/// Consecutive ranks of a tensor axis of `tp` ranks that need a group of their own, since they
/// share what its blocks compute of a head; 1: none do.
///
/// Throws: as make_model.
[[nodiscard]] std::int64_t ranks_per_head(const config::ModelConfig& config, std::int64_t tp);

}  // namespace dtrain::model
