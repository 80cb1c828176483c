// Models by name.
#pragma once

#include <memory>

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"

namespace dtrain::model {

/// The model that `config.name` names, for sequences of up to seq_len tokens.
///
/// Throws: Error{usage} for an unknown name.
[[nodiscard]] std::unique_ptr<Model> make_model(const config::ModelConfig& config,
                                                std::int64_t seq_len);

}  // namespace dtrain::model
