// An unsharded view of the model and its state on all ranks: initialisation, iteration over
// gathered parameters, saving and loading.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/parallel/engine/internal/updater.h"

namespace dtrain::parallel {

/// Maps this rank's master weights and optimizer state to the whole model.
///
/// Throws:  collective members throw what Work::wait throws.
/// Threads: one.
class WholeModel {
 public:
  /// All arguments must outlive this.
  WholeModel(const EngineSetup& setup, ParameterStore& parameters, const GradientReducer& gradients,
             const Updater& updater)
      : setup_(setup), parameters_(parameters), gradients_(gradients), updater_(updater) {}

  /// Initialises this rank's masters from EngineOptions::seed.
  ///
  /// Collective: as ParameterStore::refresh.
  void initialise();

  /// Called with a whole parameter, in its storage shape and the masters' dtype; valid during the
  /// call.
  using Visit = std::function<void(param::ParameterId, const at::Tensor&)>;
  /// Visit all parameters (gradients) of the whole model in order of ids, on every rank. Gather one
  /// unit at a time. Gradients of frozen parameters are zeros.
  ///
  /// Collective: over all groups.
  void visit_parameters(const Visit& visit) { visit_arena(parameters_.masters(), visit); }
  void visit_gradients(const Visit& visit) { visit_arena(gradients_.gradients(), visit); }
  /// Returns the peak memory of a visit in bytes.
  [[nodiscard]] static std::int64_t visit_bytes(const model::Model& model,
                                                const param::ArenaLayout& layout,
                                                at::ScalarType dtype);

  /// Overwrites replicated parameters and optimizer state by the copies of the first rank that
  /// holds them. No value changes if all ranks have rounded equally.
  ///
  /// Collective: over all groups.
  void make_copies_equal();

  /// Returns this rank's part of the checkpointed state, sharing memory: model.NAME and
  /// optimizer.STATE.NAME in storage shapes (STATE is exp_avg, exp_avg_sq or momentum_buffer;
  /// frozen parameters have none), optimizer.num_updates, optimizer.loss_scale if the loss is
  /// scaled, and the gradient reducer's error-feedback state as reducer.NAME.
  [[nodiscard]] checkpoint::State state() const;
  /// Loads a checkpoint. Resets the loss scale if the checkpoint has none. frozen_before:
  /// parameters that were frozen when the checkpoint was saved. Their optimizer state may be
  /// missing; if they are trained now, it starts at zero, and rank 0 reports this.
  ///
  /// Collective: over all groups.
  void load_state(checkpoint::Source& source, std::span<const std::string> frozen_before = {});
  /// Loads the parameters only.
  ///
  /// Collective: over all groups.
  void load_weights(checkpoint::Source& source);

 private:
  [[nodiscard]] std::vector<std::string> without_state(
      const checkpoint::Source& source, std::span<const std::string> frozen_before) const;
  // Visits all parameters with their values from the ranks' arenas.
  void visit_arena(const param::Arena& values, const Visit& visit);
  [[nodiscard]] at::Tensor gathered_unit(const param::Arena& values, param::UnitId unit) const;
  void load(const std::string& task,
            const std::function<void(const checkpoint::State& pieces)>& read);

  const EngineSetup& setup_;
  ParameterStore& parameters_;
  const GradientReducer& gradients_;
  const Updater& updater_;
};

}  // namespace dtrain::parallel
