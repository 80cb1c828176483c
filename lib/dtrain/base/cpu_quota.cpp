#include "dtrain/base/cpu_quota.h"

#include <algorithm>
#include <string_view>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/number.h"

namespace dtrain::base {
namespace {

// Version 2 has "QUOTA PERIOD" in one line ("max" for no quota), version 1 a file for each.
std::optional<std::int64_t> cores_of(const CgroupFolder& folder) {
  std::optional<std::int64_t> quota;
  std::optional<std::int64_t> period;
  if (folder.version == 1) {
    quota = cgroup_number(folder, "cpu.cfs_quota_us");
    period = cgroup_number(folder, "cpu.cfs_period_us");
  } else if (const auto line = cgroup_line(folder, "cpu.max")) {
    const auto space = line->find(' ');
    if (space == std::string::npos) return std::nullopt;
    quota = number_in<std::int64_t>(std::string_view(*line).substr(0, space));
    period = number_in<std::int64_t>(std::string_view(*line).substr(space + 1));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return std::max<std::int64_t>(1, *quota / *period);
}

}  // namespace

std::optional<std::int64_t> cpu_quota(const std::string& root) {
  std::optional<std::int64_t> least;
  for (const CgroupFolder& folder : cgroup_folders("cpu", root)) {
    const auto cores = cores_of(folder);
    if (cores && (!least || *cores < *least)) least = cores;
  }
  return least;
}

}  // namespace dtrain::base
