#include "dtrain/base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "dtrain/base/cgroup.h"

namespace dtrain::base {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// "MemAvailable:   22532096 kB"
std::optional<std::int64_t> available_in_system(const std::string& root) {
  std::ifstream lines(root + "/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

// Bytes of files' caches that a group is charged for. Pages of tmpfs are no cache: they are on
// neither of these lists.
std::int64_t file_caches(const CgroupFolder& folder) {
  const std::string prefix = folder.version == 1 ? "total_" : "";
  std::int64_t sum = 0;
  std::ifstream lines(folder.path + "/memory.stat");
  std::string name;
  for (std::int64_t bytes = 0; lines >> name >> bytes;) {
    if (name == prefix + "inactive_file" || name == prefix + "active_file") sum += bytes;
  }
  return sum;
}

// Nothing for a group without a limit.
std::optional<std::int64_t> available_in(const CgroupFolder& folder) {
  const bool is_v1 = folder.version == 1;
  const auto limit = cgroup_number(folder, is_v1 ? "memory.limit_in_bytes" : "memory.max");
  const auto used = cgroup_number(folder, is_v1 ? "memory.usage_in_bytes" : "memory.current");
  if (!limit || !used) return std::nullopt;
  const std::int64_t held = std::max<std::int64_t>(0, *used - file_caches(folder));
  return std::max<std::int64_t>(0, *limit - held);
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory least{available_in_system(root).value_or(kUnlimited), "MemAvailable"};
  for (const CgroupFolder& folder : cgroup_folders("memory", root)) {
    const auto bytes = available_in(folder);
    if (bytes && *bytes < least.bytes) least = {*bytes, folder.path};
  }
  return least;
}

Fit fit_of(std::int64_t needed, std::int64_t available) {
  if (needed > available) return Fit::exceeds;
  return needed > available / 10 * 8 ? Fit::tight : Fit::well;
}

}  // namespace dtrain::base
