// Available memory and CPU time, as limited by the machine and by control groups (cgroups v1 and
// v2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// A control group's folder; the two cgroup versions name its files differently.
struct CgroupFolder {
  int version = 2;  ///< 1 or 2
  std::string path;
};

/// The cgroup folders that limit this process's use of a controller ("memory", "cpu"): its group
/// and that group's ancestors, as far as the mount shows them. Innermost first within a version;
/// empty if no hierarchy is mounted. If the group lies outside the mount, the mount's root is used.
///
/// root: prefix of /proc and of every mount point; for tests.
[[nodiscard]] std::vector<CgroupFolder> cgroup_folders(std::string_view controller,
                                                       const std::string& root = {});

/// Reads a single-number file; empty for "max", -1 and missing files.
[[nodiscard]] std::optional<std::int64_t> cgroup_number(const CgroupFolder& folder,
                                                        const std::string& file);

/// Whole cores allowed by the tightest quota of this process's groups, at least 1; empty without a
/// quota. More threads than that are throttled.
///
/// root: as for cgroup_folders.
[[nodiscard]] std::optional<std::int64_t> cpu_quota(const std::string& root = {});

/// A limit on the memory that a set of processes can still allocate together.
struct MemoryBound {
  std::string scope;  ///< id of the set, one word: equal for all processes that share the limit
  std::int64_t bytes = 0;
  std::string source;  ///< origin of the limit: "MemAvailable" or a control group's folder
};

/// The bounds on this process: the system's available memory (MemAvailable of /proc/meminfo), and
/// the remaining memory of its control groups. The page cache counts as available, since the system
/// reclaims it; swap does not. Empty if nothing can be read.
///
/// root: prefix of /proc and of every mount point; for tests.
[[nodiscard]] std::vector<MemoryBound> memory_bounds(const std::string& root = {});

/// Result of a memory check. exceeds: more is needed than available; tight: more than 80 % of the
/// available memory is needed.
enum class Fit { well, tight, exceeds };

/// Compares needed with available bytes.
[[nodiscard]] Fit fit_of(std::int64_t needed, std::int64_t available);

}  // namespace dtrain::base
