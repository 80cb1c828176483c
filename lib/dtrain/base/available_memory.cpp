#include "dtrain/base/available_memory.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "dtrain/base/cgroup.h"

namespace dtrain::base {
namespace {

/// Empty where /proc/meminfo is the system's own; else it may say what one container may have.
std::string container_of(const std::string& root) {
  struct statfs system {};
  const bool is_known = ::statfs((root + "/proc/meminfo").c_str(), &system) == 0;
  if (is_known && system.f_type == PROC_SUPER_MAGIC) return {};
  std::error_code none;
  return fmt::format("/{}", std::filesystem::read_symlink("/proc/self/ns/mnt", none).string());
}

/// The number that identifies a control group on the whole machine: two containers may see
/// different groups under one path.
std::uint64_t number_of(const CgroupFolder& folder) {
  struct stat status {};
  return ::stat(folder.path.c_str(), &status) == 0 ? status.st_ino : 0;
}

/// Identifies the machine within a job: the start of its kernel, or else the host's name.
std::string boot_of(const std::string& root) {
  std::string boot;
  if (std::getline(std::ifstream(root + "/proc/sys/kernel/random/boot_id"), boot)) return boot;
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  return host.data();
}

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

std::vector<MemoryBound> memory_bounds(const std::string& root) {
  const std::string boot = boot_of(root);
  std::vector<MemoryBound> bounds;
  if (const auto bytes = available_in_system(root)) {
    bounds.push_back({.scope = fmt::format("system/{}{}", boot, container_of(root)),
                      .bytes = *bytes,
                      .source = "MemAvailable"});
  }
  for (const CgroupFolder& folder : cgroup_folders("memory", root)) {
    const auto bytes = available_in(folder);
    if (!bytes) continue;
    bounds.push_back(
        {.scope = fmt::format("group/{}/{}/{}", boot, folder.version, number_of(folder)),
         .bytes = *bytes,
         .source = folder.path});
  }
  return bounds;
}

Fit fit_of(std::int64_t needed, std::int64_t available) {
  if (needed > available) return Fit::exceeds;
  return needed > available / 10 * 8 ? Fit::tight : Fit::well;
}

}  // namespace dtrain::base
