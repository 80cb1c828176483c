#include "dtrain/base/host/available_resources.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "dtrain/base/text/number.h"

namespace dtrain::base {
namespace {

namespace fs = std::filesystem;

/// A mounted hierarchy, from a line of /proc/self/mountinfo.
struct Mount {
  int version = 2;
  fs::path shown;                        // the group at the mount point
  fs::path point;                        // the mount point
  std::vector<std::string> controllers;  // of version 1
};

/// A line of /proc/self/cgroup: the group within a hierarchy.
struct Membership {
  std::vector<std::string> controllers;  // empty: version 2
  fs::path group;
};

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool holds(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The kernel writes space, tab, newline and backslash as \040 and so on.
std::string unescaped(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    unsigned code = 0;
    const bool is_escape =
        text.size() >= 4 && text.front() == '\\' &&
        std::from_chars(text.data() + 1, text.data() + 4, code, 8).ptr == text.data() + 4;
    plain += is_escape ? static_cast<char>(code) : text.front();
    text.remove_prefix(is_escape ? 4 : 1);
  }
  return plain;
}

// "31 23 0:28 ROOT POINT OPTIONS TAGS... - TYPE SOURCE CONTROLLERS"
std::optional<Mount> mount_of(const std::string& line) {
  const std::vector<std::string> words = parts_of(line, ' ');
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (words.size() < 6 || words.end() - dash < 4) return std::nullopt;
  if (dash[1] != "cgroup" && dash[1] != "cgroup2") return std::nullopt;
  return Mount{.version = dash[1] == "cgroup" ? 1 : 2,
               .shown = unescaped(words[3]),
               .point = unescaped(words[4]),
               .controllers = parts_of(dash[3], ',')};
}

// "4:memory:/jobs/7" or "0::/jobs/7"; the group may hold colons.
std::optional<Membership> membership_of(const std::string& line) {
  const std::size_t first = line.find(':');
  const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
  if (second == std::string::npos) return std::nullopt;
  return Membership{.controllers = parts_of(line.substr(first + 1, second - first - 1), ','),
                    .group = line.substr(second + 1)};
}

// From the group's own folder up to the mount point.
void add_folders(const Mount& mount, const fs::path& group, const std::string& root,
                 std::vector<CgroupFolder>& folders) {
  const fs::path point = root + mount.point.string();
  fs::path within = group.lexically_relative(mount.shown);
  if (within.empty() || *within.begin() == "..") within = ".";
  std::error_code error;
  for (; within != "."; within = within.has_parent_path() ? within.parent_path() : ".") {
    const fs::path folder = point / within;
    if (fs::is_directory(folder, error)) folders.push_back({mount.version, folder.string()});
  }
  folders.push_back({mount.version, point.string()});
}

// The first line of a file of the folder; empty if it cannot be read.
std::optional<std::string> first_line(const CgroupFolder& folder, const std::string& file) {
  std::ifstream stream(folder.path + "/" + file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

// Version 2 has "QUOTA PERIOD" in one line ("max" for no quota), version 1 a file for each.
std::optional<std::int64_t> cores_of(const CgroupFolder& folder) {
  std::optional<std::int64_t> quota;
  std::optional<std::int64_t> period;
  if (folder.version == 1) {
    quota = cgroup_number(folder, "cpu.cfs_quota_us");
    period = cgroup_number(folder, "cpu.cfs_period_us");
  } else if (const auto line = first_line(folder, "cpu.max")) {
    const auto space = line->find(' ');
    if (space == std::string::npos) return std::nullopt;
    quota = number_in<std::int64_t>(std::string_view(*line).substr(0, space));
    period = number_in<std::int64_t>(std::string_view(*line).substr(space + 1));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return std::max<std::int64_t>(1, *quota / *period);
}

/// Empty if /proc/meminfo is the system's own; a container runtime may replace it.
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

/// Identifies the machine within a job: its boot id, or else the host name.
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

// Page cache bytes charged to a group. Pages of tmpfs are on neither of these lists.
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

// Empty for a group without a limit.
std::optional<std::int64_t> available_in(const CgroupFolder& folder) {
  const bool is_v1 = folder.version == 1;
  const auto limit = cgroup_number(folder, is_v1 ? "memory.limit_in_bytes" : "memory.max");
  const auto used = cgroup_number(folder, is_v1 ? "memory.usage_in_bytes" : "memory.current");
  if (!limit || !used) return std::nullopt;
  const std::int64_t held = std::max<std::int64_t>(0, *used - file_caches(folder));
  return std::max<std::int64_t>(0, *limit - held);
}

}  // namespace

std::vector<CgroupFolder> cgroup_folders(std::string_view controller, const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream mount_lines(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mount_lines, line);) {
    if (auto mount = mount_of(line)) mounts.push_back(std::move(*mount));
  }
  std::vector<CgroupFolder> folders;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto membership = membership_of(line);
    if (!membership) continue;
    const bool is_v2 = membership->controllers.empty();
    if (!is_v2 && !holds(membership->controllers, controller)) continue;
    // A hierarchy may be mounted several times; each mount shows the same limits.
    const auto mount = std::find_if(mounts.begin(), mounts.end(), [&](const Mount& one) {
      return is_v2 ? one.version == 2 : one.version == 1 && holds(one.controllers, controller);
    });
    if (mount != mounts.end()) add_folders(*mount, membership->group, root, folders);
  }
  return folders;
}

std::optional<std::int64_t> cgroup_number(const CgroupFolder& folder, const std::string& file) {
  const auto line = first_line(folder, file);
  const auto number = line ? number_in<std::int64_t>(*line) : std::nullopt;
  return number && *number >= 0 ? number : std::nullopt;
}

std::optional<std::int64_t> cpu_quota(const std::string& root) {
  std::optional<std::int64_t> least;
  for (const CgroupFolder& folder : cgroup_folders("cpu", root)) {
    const auto cores = cores_of(folder);
    if (cores && (!least || *cores < *least)) least = cores;
  }
  return least;
}

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
