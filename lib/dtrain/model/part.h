// Makes some blocks of a model a model of their own, for a stage of a pipeline.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dtrain/model/model.h"

namespace dtrain::model {

struct ModelPart {
  std::unique_ptr<Model> model;
  std::vector<param::ParameterId> numbers;  ///< by parameter of `model`: its number in the whole
};

/// The blocks of `ranges`, which ascend without overlap, and the parameters that they use,
/// renumbered in the same order. Buffers and tables stay.
[[nodiscard]] ModelPart take_part(std::unique_ptr<Model> whole, std::span<const BlockRange> ranges);

}  // namespace dtrain::model
