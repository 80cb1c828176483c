// Resolves conflicts between settings of different layers (files, flags): a later layer resets
// inherited settings that its own settings exclude.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// Resets inherited settings that conflict with those of a layer. If the layer changes the
/// strategy, also resets inherited settings that the new strategy does not use. Some settings, e.g.
/// --zero-stage, select the strategy that uses them, unless the layer sets --strategy. Conflicts
/// within one layer remain, and resolve() rejects them.
///
/// below:   the settings before the layer.
/// given:   the settings of the layer.
/// config:  below with the layer applied; updated.
/// Returns: "--steps 5 replaces --epochs 2, --decay-steps 9", one line per setting that wins.
[[nodiscard]] std::vector<std::string> reset_conflicts(const Config& below,
                                                       std::span<const Setting* const> given,
                                                       Config& config);

/// Likewise resets an inherited --microbatch or --grad-accum that does not divide the layer's
/// --global-batch on the ranks of `launch`.
///
/// Throws: Error{usage} as resolve_layout.
[[nodiscard]] std::vector<std::string> reset_conflicting_batch(
    const Config& below, std::span<const Setting* const> given, Config& config,
    const Launch& launch);

/// True if each rank's share of the global batch is a multiple of `microbatch`, with at least one
/// microbatch per stage.
///
/// Throws: Error{usage} as resolve_layout.
[[nodiscard]] bool microbatch_fits(std::int64_t microbatch, const Config& config,
                                   const Launch& launch);

}  // namespace dtrain::config
