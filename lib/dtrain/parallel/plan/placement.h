// Where the parameters that one rank holds stand among those of the whole model: what the tensor
// and the pipeline axis make of them.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// The parameters of a model as its ranks know them together; numbers count the whole model's.
struct WholeParameters {
  std::vector<param::ParameterSpec> specs;        ///< of the whole model, uncut
  std::vector<param::ParameterId> numbers;        ///< of each parameter that this rank holds
  std::vector<std::vector<std::int64_t>> stages;  ///< by number: those that hold it, ascending
};

/// Of one rank that holds the whole model.
[[nodiscard]] WholeParameters whole_parameters(const model::Model& model);

/// Ids count the parameters that this rank holds.
///
/// Throws:  collective members what Work::wait throws.
/// Threads: one.
class Placement {
 public:
  /// tensor, pipeline: this rank's groups along the axes; null: of size 1. They and `model` must
  /// outlive this.
  Placement(const model::Model& model, WholeParameters whole, comm::ProcessGroup* tensor,
            comm::ProcessGroup* pipeline);

  [[nodiscard]] const WholeParameters& whole() const { return whole_; }
  /// A box of what this rank holds, as one of the whole parameter.
  [[nodiscard]] checkpoint::Box in_whole(param::ParameterId id, checkpoint::Box box) const;
  /// This rank among all that hold the same, where it is `data` among those of its data axis.
  [[nodiscard]] checkpoint::Replica replica(param::ParameterId id,
                                            const checkpoint::Replica& data) const;

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
  comm::ProcessGroup* tensor_;
  comm::ProcessGroup* pipeline_;
};

}  // namespace dtrain::parallel
