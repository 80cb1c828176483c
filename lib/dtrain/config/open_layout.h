// --strategy auto: the part of config::resolve for a layout that the ranks choose later.
#pragma once

#include <cstdint>

#include "dtrain/config/command_line.h"
#include "dtrain/config/resolve.h"

namespace dtrain::config {

/// True for settings that --strategy auto chooses, and that must not be given with it.
[[nodiscard]] bool is_chosen_by_auto(const Setting& setting);

/// Throws: Error{usage} where a setting says a part of the layout, or `command` has none to choose.
void check_open_layout(Command command, const Config& config);

/// The same where `command_line` asks for it: the error names the flag, or the file and its key,
/// that said it. config: as given there.
void check_open_layout(const CommandLine& command_line, const Config& config);

/// Throws: Error{usage} on a device whose layouts nothing here can measure.
void check_open_device(const DeviceName& device);

/// Sets the global batch. A microbatch that was not given stays 0: the chosen layout sets it.
void resolve_open_batch(BatchConfig& batch, std::int64_t num_ranks);

}  // namespace dtrain::config
