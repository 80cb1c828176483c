// Where the values that one rank holds stand in the whole parameters: the tensor axis cuts them,
// the pipeline axis distributes them.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/pipeline/run/make_stage.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// Knows which ranks hold which parts of each parameter.
///
/// Throws:  collective members what Work::wait throws.
/// Threads: one.
class Placement {
 public:
  /// holders: StagePlan::holders. `model` and `groups` must outlive this.
  Placement(const model::Model& model, ParameterHolders holders, const mesh::MeshGroups& groups);

  /// A box of what this rank holds, as one of the whole parameter.
  [[nodiscard]] checkpoint::Box in_whole(param::ParameterId id, checkpoint::Box box) const;
  /// The stages that hold the parameter.
  [[nodiscard]] comm::ProcessGroup& stages(param::ParameterId id) const;
  /// The groups along which ranks hold copies of this rank's values, outer axes first.
  [[nodiscard]] std::vector<comm::ProcessGroup*> copies(param::ParameterId id) const;
  /// This rank among all that hold the same values.
  [[nodiscard]] checkpoint::Replica replica(param::ParameterId id) const;

  /// The sums of squares of all parameters of the model, (parameters) float64, from those of this
  /// rank's part of each; equal on all ranks.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor squares_of_all(const at::Tensor& squares) const;

  /// The whole parameter, in its storage shape. part: what this rank holds of it; undefined on
  /// stages that do not.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor assembled(param::ParameterId id, const at::Tensor& part,
                                     const at::TensorOptions& options) const;
  /// Returns the elements that assembled() takes for such a parameter.
  [[nodiscard]] static std::int64_t assembled_elements(const param::ParameterSpec& spec);

 private:
  [[nodiscard]] bool speaks_for(param::ParameterId id) const;

  const model::Model& model_;
  ParameterHolders holders_;
  const mesh::MeshGroups& groups_;
};

}  // namespace dtrain::parallel
