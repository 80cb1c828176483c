// Where the parameters that one rank holds stand among those of the whole model: what the tensor
// and the pipeline axis make of them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// The parameters of a model as its ranks know them together; numbers count the whole model's.
struct WholeParameters {
  std::vector<param::ParameterSpec> specs;        ///< of the whole model, uncut
  std::vector<param::ParameterId> numbers;        ///< of each parameter that this rank holds
  std::vector<std::vector<std::int64_t>> stages;  ///< by number: those that hold it, ascending
};

/// The parameters of one rank that holds the whole model.
[[nodiscard]] WholeParameters whole_parameters(const model::Model& model);

/// Ids count the parameters that this rank holds.
///
/// Throws:  collective members what Work::wait throws.
/// Threads: one.
class Placement {
 public:
  /// `model` and `groups` must outlive this.
  Placement(const model::Model& model, WholeParameters whole, const mesh::MeshGroups& groups)
      : model_(model), whole_(std::move(whole)), groups_(groups) {}

  [[nodiscard]] const WholeParameters& whole() const { return whole_; }
  /// A box of what this rank holds, as one of the whole parameter.
  [[nodiscard]] checkpoint::Box in_whole(param::ParameterId id, checkpoint::Box box) const;
  /// The stages that hold the parameter.
  [[nodiscard]] comm::ProcessGroup& stages(param::ParameterId id) const;
  /// The groups along which ranks hold copies of this rank's values, outer axes first.
  [[nodiscard]] std::vector<comm::ProcessGroup*> copies(param::ParameterId id) const;
  /// This rank among all that hold the same values.
  [[nodiscard]] checkpoint::Replica replica(param::ParameterId id) const;

  /// The norm of the whole model, () float64, from the sums of squares of this rank's parameters,
  /// (parameters) float64, each counted once.
  ///
  /// Collective: over the tensor and the pipeline axis. Equal on all ranks.
  [[nodiscard]] at::Tensor norm(const at::Tensor& squares) const;

  /// The whole of parameter `number`, in its storage shape. part: what this rank holds of it;
  /// undefined on stages that do not.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor assembled(std::int64_t number, const at::Tensor& part,
                                     const at::TensorOptions& options) const;

 private:
  [[nodiscard]] const param::ParameterSpec& spec(param::ParameterId id) const;
  [[nodiscard]] std::int64_t number(param::ParameterId id) const;
  [[nodiscard]] bool speaks_for(param::ParameterId id) const;

  const model::Model& model_;
  WholeParameters whole_;
  const mesh::MeshGroups& groups_;
};

}  // namespace dtrain::parallel
