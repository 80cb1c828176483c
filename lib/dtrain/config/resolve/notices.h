// Notices at a start about its settings.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/resolve/resolve.h"

namespace dtrain::config {

/// "model.levels=2 train.lr=0.003 and 3 more": the settings of train in which `asked` differs from
/// the defaults, in the schema's order. Without data, run folder and resume, which every run gives.
/// Empty if there are none.
[[nodiscard]] std::string changed_settings(const Config& asked);

/// Says which device --device auto has taken on a machine with GPUs, and why; empty elsewhere.
/// asked: before resolve(); config: after it.
[[nodiscard]] std::string device_note(const Config& asked, const Config& config,
                                      const Launch& launch);

/// Warns about more threads than cores: oversubscribed threads wait for each other at every
/// parallel region. Empty if there are enough cores. asked: before resolve(); config: after it;
/// is_bound: the process is pinned to cores that other ranks do not use.
[[nodiscard]] std::string threads_warning(const Config& asked, const Config& config,
                                          const Launch& launch, bool is_bound);

/// One line for each setting of `command` that differs from its default without an effect, in the
/// schema's order; of train also those for settings that have a price.
///
/// config: resolved.
[[nodiscard]] std::vector<std::string> warnings(Command command, const Config& config);

}  // namespace dtrain::config
