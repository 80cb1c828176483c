// Reads how much of the processor the control groups leave to this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtrain::base {

/// Whole cores that the tightest quota of this process's groups allows, at least 1; nothing where
/// there is no quota. More threads than that are stopped for a part of each period.
///
/// root: as of cgroup_folders.
[[nodiscard]] std::optional<std::int64_t> cpu_quota(const std::string& root = {});

}  // namespace dtrain::base
