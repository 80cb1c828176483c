// Makes some blocks of a model a model of their own, for a stage of a pipeline.
#pragma once

#include <memory>
#include <span>

#include "dtrain/model/model.h"

namespace dtrain::model {

/// The blocks of `ranges`, which ascend without overlap. Parameters keep their ids; those that no
/// block of the part uses are not held. Buffers and tables stay.
[[nodiscard]] std::unique_ptr<Model> take_part(std::unique_ptr<Model> whole,
                                               std::span<const BlockRange> ranges);

}  // namespace dtrain::model
