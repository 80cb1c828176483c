// The table of models by name.
#pragma once

#include <memory>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
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

/// Neighbours on a tensor axis of `tp` ranks that the model's blocks let talk to each other alone
/// (TensorAxis::reduce_within), by subgroup.
///
/// Throws: as make_model.
[[nodiscard]] std::vector<mesh::Subgroup> tensor_subgroups(const config::ModelConfig& config,
                                                           std::int64_t tp);

}  // namespace dtrain::model
