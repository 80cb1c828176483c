// Mutually exclusive settings: one that a later layer gives replaces an inherited one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// Resets settings of lower layers (files, or the run) that a layer's settings exclude: a new
/// strategy also drops the settings of the inherited one, and a setting of another strategy selects
/// that strategy. Two exclusive settings of one layer stay, and resolve() rejects them.
///
/// below:   the settings before the layer.
/// given:   what it sets.
/// config:  below with the layer applied.
/// Returns: "--steps 5 replaces --epochs 2, --decay-steps 9", one line per winner.
[[nodiscard]] std::vector<std::string> drop_rivals(const Config& below,
                                                   std::span<const Setting* const> given,
                                                   Config& config);

/// Likewise an inherited microbatch or accumulation that does not divide the layer's --global-batch
/// on the ranks of `launch`.
///
/// Throws: Error{usage} as resolve_layout.
[[nodiscard]] std::vector<std::string> drop_rival_batch(const Config& below,
                                                        std::span<const Setting* const> given,
                                                        Config& config, const Launch& launch);

/// True if each rank's share of the global batch is a whole number of such microbatches, at least
/// one per stage.
///
/// Throws: Error{usage} as resolve_layout.
[[nodiscard]] bool fits_ranks(std::int64_t microbatch, const Config& config, const Launch& launch);

}  // namespace dtrain::config
