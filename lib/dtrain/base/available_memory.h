// How much memory this machine still has for this process and the others of its job.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::base {

struct AvailableMemory {
  std::int64_t bytes = 0;
  std::string source;  ///< what sets the bound: "MemAvailable", or a control group's folder
};

/// The least of what the system says is available (MemAvailable of /proc/meminfo) and of what the
/// limits of this process's control groups leave, versions 1 and 2. Caches of files count as
/// available: the system takes them back. Swap does not count.
///
/// Where nothing can be read, the largest number.
/// root: stands before /proc and before every mount point; for tests.
[[nodiscard]] AvailableMemory available_memory(const std::string& root = {});

enum class Fit { well, tight, exceeds };

/// exceeds: `needed` bytes are more than `available`; tight: more than 80 % of them.
[[nodiscard]] Fit fit_of(std::int64_t needed, std::int64_t available);

}  // namespace dtrain::base
