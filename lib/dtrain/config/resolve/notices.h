// Notices and warnings about settings, printed at launch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dtrain/config/resolve/resolve.h"

namespace dtrain::config {

/// Lists the settings of train that differ from their defaults, in schema order, up to 24:
/// "model.layers=2 train.lr=0.003 and 3 more". Omits data, run folder and resume, which differ in
/// every run. Empty if there are none.
[[nodiscard]] std::string changed_settings(const Config& requested);

/// Names the device that --device auto has chosen on a machine with GPUs, and why; otherwise empty.
/// requested: before resolve(); config: after it.
[[nodiscard]] std::string device_note(const Config& requested, const Config& config,
                                      const Launch& launch);

/// Warns about more threads than cores: oversubscribed threads wait for each other at every
/// parallel region. Empty if there are enough cores. requested: before resolve(); config: after it;
/// is_bound: the process is pinned to cores that other ranks do not use.
[[nodiscard]] std::string threads_warning(const Config& requested, const Config& config,
                                          const Launch& launch, bool is_bound);

/// Warns about sequences that are longer than the model's maximum; empty if they are not.
/// config: resolved.
[[nodiscard]] std::string positions_warning(const Config& config);

/// One line per setting of `command` that has no effect although it differs from its default or,
/// for a layout setting, is one of `flags`, in schema order. For train also lines about settings
/// that cost accuracy or reproducibility.
///
/// config: resolved.
/// flags:  the settings that the command line gives.
[[nodiscard]] std::vector<std::string> warnings(Command command, const Config& config,
                                                std::span<const Setting* const> flags = {});

}  // namespace dtrain::config
