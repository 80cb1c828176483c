// What the layout settings mean: the one table from strategy names to axes of the mesh.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// What a strategy makes of the ranks it has.
struct Strategy {
  enum class Ranks {
    dp,     ///< all see different data
    tp,     ///< all share the arithmetic of each block
    pp,     ///< all are stages
    given,  ///< --pp, --dp and --tp say it
  };
  std::string_view name;
  Ranks ranks = Ranks::dp;
  std::string_view data_axis = "ddp";  ///< ddp | zero | fsdp; empty: --data-axis says it
  /// Of one whose ranks are threads of one process: the strategy that does the same with processes.
  std::string_view with_processes = {};

  [[nodiscard]] bool is_local() const { return !with_processes.empty(); }
};

/// Throws: Error{internal} for a name that the schema would have refused.
[[nodiscard]] const Strategy& strategy_of(const LayoutConfig& layout);

/// "ddp", "zero" or "fsdp".
[[nodiscard]] std::string_view data_axis_of(const LayoutConfig& layout);

/// What ranks that see different data hold a part of, instead of all of it.
enum class Sharding {
  none,              ///< nothing: DDP
  optimizer,         ///< the optimizer's state: ZeRO-1
  gradients,         ///< and gradients: ZeRO-2
  freed_parameters,  ///< and parameters, between backward and the next forward
  parameters,        ///< and parameters, whenever they are not used: ZeRO-3, FSDP
};

/// Throws: Error{internal} for an option that the schema would have refused.
[[nodiscard]] Sharding sharding_of(const LayoutConfig& layout);

/// Whether units are gathered and freed within a step.
[[nodiscard]] constexpr bool gathers_units(Sharding sharding) {
  return sharding >= Sharding::freed_parameters;
}

/// Whether the gradients of a step, of grad_accum microbatches on each rank, are added in the very
/// order in which one rank would add them all, so that they have the same bits
/// (docs/determinism.md). layout: resolved.
[[nodiscard]] bool keeps_order_of_one_rank(const LayoutConfig& layout, std::int64_t grad_accum);

/// The folder of --offload disk:DIR; empty for the other words. Nothing for other texts.
[[nodiscard]] std::optional<std::string> parse_offload(std::string_view text);

/// A value of --wrap.
struct WrapPolicy {
  enum class Kind {
    block,  ///< the parameters of each block; blocks that share parameters share a unit
    size,   ///< the same, neighbours merged until each unit has at least min_elements
    none,   ///< one unit for the whole model
  };
  Kind kind = Kind::block;
  std::int64_t min_elements = 0;  ///< read for size

  bool operator==(const WrapPolicy&) const = default;
};

/// "block", "size:N" (N at least 1), "none". Nothing for other texts.
[[nodiscard]] std::optional<WrapPolicy> parse_wrap(std::string_view text);

}  // namespace dtrain::config
