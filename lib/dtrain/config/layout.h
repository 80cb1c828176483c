// What the layout settings mean: the one table from strategy names to what the data axis shares.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// What ranks that see different data hold a part of, instead of all of it.
enum class Sharding {
  none,              ///< nothing: DDP
  optimizer,         ///< the optimizer's state: ZeRO-1
  gradients,         ///< and gradients: ZeRO-2
  freed_parameters,  ///< and parameters, between backward and the next forward
  parameters,        ///< and parameters, whenever they are not used: ZeRO-3, FSDP
};

/// Throws: Error{internal} for a strategy or option that the schema would have refused.
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
