// Measures the memory that this machine still has for this process and the others of its job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::base {

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
