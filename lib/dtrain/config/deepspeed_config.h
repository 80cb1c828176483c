// A configuration file of DeepSpeed's, in our settings (docs/habits.md).
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/command_line.h"

namespace dtrain::config {

/// What a file asks for, and its keys that have no part in it.
struct DeepSpeedConfig {
  std::vector<Assignment> assignments;
  std::vector<std::string> unused;  ///< dotted keys, those that nobody knows included
};

/// Reads the file. A value "auto" is as if not given.
///
/// Throws: Error{usage} naming file and key: unreadable, not JSON, a value of another type, or
///         something that would train another model here (an optimizer, scheduler or sharding
///         that dtrain does not have).
[[nodiscard]] DeepSpeedConfig read_deepspeed_config(const std::string& path);

}  // namespace dtrain::config
