// Memory and processor time that this machine and its control groups, versions 1 and 2, leave to
// this process and the others of its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// A control group's folder. Files of the two versions have different names.
struct CgroupFolder {
  int version = 2;  ///< 1 or 2
  std::string path;
};

/// The folders whose limits bind this process for a controller ("memory", "cpu"): its own group's
/// and those above it, as far up as the mount shows. Innermost first within a version; empty where
/// no hierarchy is mounted. A group that is not to be seen under the mount counts as the mount's
/// highest one.
///
/// root: stands before /proc and before every mount point; for tests.
[[nodiscard]] std::vector<CgroupFolder> cgroup_folders(std::string_view controller,
                                                       const std::string& root = {});

/// The number that a file of one number holds; nothing for "max", -1 and files that are not there.
[[nodiscard]] std::optional<std::int64_t> cgroup_number(const CgroupFolder& folder,
                                                        const std::string& file);

/// Whole cores that the tightest quota of this process's groups allows, at least 1; nothing where
/// there is no quota. More threads than that are stopped for a part of each period.
///
/// root: as of cgroup_folders.
[[nodiscard]] std::optional<std::int64_t> cpu_quota(const std::string& root = {});

/// The memory that some processes can still take together.
struct MemoryBound {
  std::string scope;  ///< of whom: equal for processes that share it; one word
  std::int64_t bytes = 0;
  std::string source;  ///< what sets it: "MemAvailable", or a control group's folder
};

/// The bounds on this process: the system's available memory (MemAvailable of /proc/meminfo) and
/// what the limits of its control groups leave, versions 1 and 2. Caches of files count as
/// available: the system takes them back. Swap does not count. None where nothing can be read.
///
/// root: stands before /proc and before every mount point; for tests.
[[nodiscard]] std::vector<MemoryBound> memory_bounds(const std::string& root = {});

enum class Fit { well, tight, exceeds };

/// exceeds: `needed` bytes are more than `available`; tight: more than 80 % of them.
[[nodiscard]] Fit fit_of(std::int64_t needed, std::int64_t available);

}  // namespace dtrain::base
