// Derives the mesh and the sharding of state from the layout settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/values/mesh_shape.h"
#include "dtrain/config/values/values.h"

namespace dtrain::config {

/// The size setting of an axis; 0 if it is derived from the others.
[[nodiscard]] std::int64_t& size_of(LayoutConfig& layout, Axis axis);

/// The mesh shape given by the size settings.
[[nodiscard]] MeshShape mesh_of(const LayoutConfig& layout);

/// How a strategy uses its ranks.
struct StrategyTraits {
  Strategy strategy = Strategy::single;
  std::optional<Axis> axis = Axis::dp;  ///< the only axis; none if the strategy uses several
  std::optional<DataAxisKind> data_axis = DataAxisKind::ddp;  ///< none: set by --data-axis
  /// For strategies whose ranks are threads of one process: the equivalent with processes.
  std::optional<Strategy> with_processes = {};

  [[nodiscard]] bool is_local() const { return with_processes.has_value(); }
};

[[nodiscard]] const StrategyTraits& strategy_of(const LayoutConfig& layout);

/// The kind of the data axis, whichever setting determines it.
[[nodiscard]] DataAxisKind data_axis_of(const LayoutConfig& layout);

/// The strategy that puts all ranks on a data axis of this kind.
[[nodiscard]] Strategy strategy_for(DataAxisKind data_axis);

/// The state that data-parallel ranks shard; each rank holds the rest in full.
enum class Sharding {
  none,              ///< nothing: DDP
  optimizer,         ///< optimizer state: ZeRO-1
  gradients,         ///< also gradients: ZeRO-2
  freed_parameters,  ///< also parameters, freed after the backward pass
  parameters,        ///< also parameters, freed after each use: ZeRO-3, FSDP
};

[[nodiscard]] Sharding sharding_of(const LayoutConfig& layout);

/// True if units are gathered and freed within a step.
[[nodiscard]] constexpr bool gathers_units(Sharding sharding) {
  return sharding >= Sharding::freed_parameters;
}

/// True if this layout adds the gradients of a step, with grad_accum microbatches per rank, in the
/// same order as a single rank would, so that they are bit-identical (docs/guide/determinism.md).
/// layout: resolved.
[[nodiscard]] bool matches_single_rank_order(const LayoutConfig& layout, std::int64_t grad_accum);

/// The number of stages, and of microbatches per step that each stage runs.
struct PipelineSize {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
};

/// Checks that an interleaved schedule has several stages, whose number divides the microbatches.
///
/// microbatches_flag: the flag of the number of microbatches, for the message.
/// Throws: Error{usage} naming --schedule-pp and the setting that does not fit.
void require_schedule_fits(const PipelineSetting& setting, const PipelineSize& size,
                           std::string_view microbatches_flag);

/// Checks that every part of the model has at least one layer. If `split` is not empty, part i has
/// split[i] layers, and the split must cover all of them.
///
/// Throws: Error{usage} naming --pp, and --layers or --pp-split.
void require_layers_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_layers);

}  // namespace dtrain::config
