// The families of this build, and what they make by name.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"

namespace dtrain::model {

/// The family that `config.name` names.
[[nodiscard]] const Family& family_of(const config::ModelConfig& config);

/// The model that `config.name` names, for sequences of up to seq_len tokens,
/// as much of it as a rank at `place` holds.
///
/// computation: a family without fused kernels has but the plain.
/// Throws: Error{usage} for a tensor axis that the model cannot be cut for.
[[nodiscard]] std::unique_ptr<Model> make_model(const config::ModelConfig& config,
                                                std::int64_t seq_len, const TensorPlace& place = {},
                                                const Computation& computation = {});

/// Neighbours on a tensor axis of `tp` ranks that the model's blocks let talk to each other alone
/// (TensorAxis::reduce_within), by subgroup.
///
/// Throws: as make_model.
[[nodiscard]] std::vector<mesh::Subgroup> tensor_subgroups(const config::ModelConfig& config,
                                                           std::int64_t tp);

/// The settings of the model whose weights a file holds, as its family reads them off the tensors.
///
/// Throws: Error{checkpoint} where no family recognises the tensors, or does not find the number of
///         levels; else as Family::read_sizes.
[[nodiscard]] config::ModelConfig recognise(const TensorShapes& tensors, const UserHints& told);

}  // namespace dtrain::model
