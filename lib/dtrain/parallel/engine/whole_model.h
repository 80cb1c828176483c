// The model and its state as all ranks hold them together: initialised, visited, saved and loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/parallel/engine/internal/updater.h"

namespace dtrain::parallel {

/// Knows which part of the whole model this rank's masters and optimizer state are.
///
/// Throws:  collective members what Work::wait throws.
/// Threads: one.
class WholeModel {
 public:
  /// All must outlive this.
  WholeModel(const EngineSetup& setup, ParameterStore& parameters, const GradientReducer& gradients,
             const Updater& updater)
      : setup_(setup), parameters_(parameters), gradients_(gradients), updater_(updater) {}

  /// Draws this rank's masters from the options' seed.
  ///
  /// Collective: as ParameterStore::refresh.
  void initialise();

  /// Given each parameter's values in full, in its storage shape and the masters' dtype; valid
  /// during the call.
  using Visit = std::function<void(param::ParameterId, const at::Tensor&)>;
  /// Visits the values of all parameters of the whole model in the order of their ids, on every
  /// rank; a unit at a time is gathered. Zeros of parameters that the arena does not hold.
  ///
  /// Collective: over all groups.
  void visit(const param::Arena& values, const Visit& visit);
  /// Returns the bytes that visit() takes at most.
  [[nodiscard]] static std::int64_t visit_bytes(const model::Model& model,
                                                const param::ArenaLayout& layout,
                                                at::ScalarType dtype);

  /// Replaces copies of parameters and optimizer state by those of the first rank that holds them.
  ///
  /// Collective: over all groups.
  void make_copies_equal();

  /// This rank's part of parameters and optimizer state, sharing memory: model.NAME,
  /// optimizer.STATE.NAME (exp_avg and exp_avg_sq, or momentum_buffer; not of frozen parameters) in
  /// storage shapes, and optimizer.num_updates; with loss scaling optimizer.loss_scale. What the
  /// gradient reducer carries from step to step follows, as reducer.NAME. A loss scale that a
  /// checkpoint lacks begins anew.
  [[nodiscard]] checkpoint::State state() const;
  /// frozen_before: names of the parameters that were frozen in the run that saved. Their optimizer
  /// state may be missing: where they are trained now it starts at zero, which rank 0 reports.
  ///
  /// Collective: over all groups.
  void load_state(checkpoint::Source& source, std::span<const std::string> frozen_before = {});
  /// The parameters alone.
  ///
  /// Collective: over all groups.
  void load_weights(checkpoint::Source& source);

 private:
  [[nodiscard]] std::vector<std::string> without_state(
      const checkpoint::Source& source, std::span<const std::string> frozen_before) const;
  [[nodiscard]] at::Tensor gathered_unit(const param::Arena& values, param::UnitId unit) const;
  void load(const std::string& task,
            const std::function<void(const checkpoint::State& pieces)>& read);

  const EngineSetup& setup_;
  ParameterStore& parameters_;
  const GradientReducer& gradients_;
  const Updater& updater_;
};

}  // namespace dtrain::parallel
