#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/base/host/available_resources.h"
#include "support/temp_folder.h"

namespace cgroup_test {
namespace {

using dtrain::base::cgroup_folders;
using dtrain::base::cgroup_number;
using dtrain::base::cpu_quota;
using dtrain::testing::TempFolder;

// A test cannot set a machine's limits, so these read folders that imitate them.
constexpr std::int64_t kMiB = 1 << 20;

dtrain::base::MemoryBound available_memory(const std::string& root) {
  const auto bounds = dtrain::base::memory_bounds(root);
  const auto least = std::min_element(
      bounds.begin(), bounds.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  REQUIRE(least != bounds.end());
  return *least;
}

std::vector<std::string> paths(const TempFolder& machine, std::string_view controller) {
  std::vector<std::string> found;
  for (const auto& folder : cgroup_folders(controller, machine.path(""))) {
    found.push_back(std::filesystem::path(folder.path).lexically_relative(machine.path("")));
  }
  return found;
}

std::string in_bytes(std::int64_t mebibytes) { return std::to_string(mebibytes * kMiB) + "\n"; }

void write_available(const TempFolder& machine, std::int64_t mebibytes) {
  machine.write("proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable:   " +
                                    std::to_string(mebibytes * 1024) + " kB\n");
}

// A limit, and what is used of it, part of that caches of files.
void write_v2(const TempFolder& machine, const std::string& folder, const std::string& limit) {
  machine.write(folder + "/memory.max", limit);
  machine.write(folder + "/memory.current", in_bytes(300));
  machine.write(folder + "/memory.stat", "anon 1\nfile 999999999\ninactive_file " + in_bytes(60) +
                                             "active_file " + in_bytes(40));
}

TEST_CASE("Version 2: the folders of a group and all above it are found") {
  const TempFolder machine;
  machine.write("proc/self/cgroup", "0::/jobs/a job:7\n");
  machine.write("proc/self/mountinfo",
                "22 1 0:5 / /proc rw - proc proc rw\n"
                "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  machine.write("sys/fs/cgroup/jobs/a job:7/cpu.max", "50000 100000\n");
  CHECK(paths(machine, "cpu") == std::vector<std::string>{"sys/fs/cgroup/jobs/a job:7",
                                                          "sys/fs/cgroup/jobs", "sys/fs/cgroup"});
}

TEST_CASE("Version 1: each controller has its own hierarchy, also under a name with spaces") {
  const TempFolder machine;
  machine.write("proc/self/cgroup", "5:memory:/box/7\n4:cpu,cpuacct:/fast\n0::/\n");
  machine.write("proc/self/mountinfo",
                "31 23 0:28 /box /my\\040groups/memory rw - cgroup cgroup rw,memory\n"
                "32 23 0:29 / /groups/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  machine.write("my groups/memory/7/memory.limit_in_bytes", in_bytes(5));
  machine.write("groups/cpu/fast/cpu.cfs_quota_us", "-1\n");
  CHECK(paths(machine, "memory") ==
        std::vector<std::string>{"my groups/memory/7", "my groups/memory"});
  CHECK(paths(machine, "cpu") == std::vector<std::string>{"groups/cpu/fast", "groups/cpu"});
  const auto folder = cgroup_folders("memory", machine.path("")).front();
  CHECK(folder.version == 1);
  CHECK(cgroup_number(folder, "memory.limit_in_bytes") == 5 * kMiB);
  CHECK(!cgroup_number(folder, "memory.of_no_kernel"));
  CHECK(!cgroup_number(cgroup_folders("cpu", machine.path("")).front(), "cpu.cfs_quota_us"));
}

TEST_CASE("A group outside a container's mount is taken for the mount's root") {
  const TempFolder machine;
  machine.write("proc/self/cgroup", "5:memory:/docker/abc\n");
  machine.write("proc/self/mountinfo",
                "31 23 0:28 /docker/xyz /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  CHECK(paths(machine, "memory") == std::vector<std::string>{"sys/fs/cgroup/memory"});
}

TEST_CASE("Available memory is the minimum of the system's and of every ancestor group's") {
  const TempFolder machine;
  machine.write("proc/self/cgroup", "0::/outer/inner\n");
  machine.write("proc/self/mountinfo",
                "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
  const std::string outer = "sys/fs/cgroup/outer";
  write_v2(machine, outer + "/inner", "max\n");
  write_v2(machine, outer, in_bytes(1000));

  write_available(machine, 5000);
  auto found = available_memory(machine.path(""));
  CHECK(found.bytes == 800 * kMiB);  // 1000 - (300 - 100 of caches)
  CHECK(found.source == machine.path("") + "/" + outer);

  write_v2(machine, outer + "/inner", in_bytes(500));
  CHECK(available_memory(machine.path("")).bytes == 300 * kMiB);

  write_v2(machine, outer, in_bytes(100));  // it is over its limit
  CHECK(available_memory(machine.path("")).bytes == 0);

  write_v2(machine, outer, "max\n");
  write_available(machine, 200);
  found = available_memory(machine.path(""));
  CHECK(found.bytes == 200 * kMiB);
  CHECK(found.source == "MemAvailable");
}

TEST_CASE("Available memory under version 1 includes the caches of descendant groups") {
  const TempFolder machine;
  write_available(machine, 5000);
  machine.write("proc/self/cgroup", "4:memory:/job\n");
  machine.write("proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  const std::string job = "sys/fs/cgroup/memory/job";
  machine.write(job + "/memory.limit_in_bytes", in_bytes(1000));
  machine.write(job + "/memory.usage_in_bytes", in_bytes(300));
  machine.write(job + "/memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file " +
                                          in_bytes(60) + "total_active_file " + in_bytes(40));
  CHECK(available_memory(machine.path("")).bytes == 800 * kMiB);
}

TEST_CASE("Without readable limits there are no memory bounds") {
  const TempFolder machine;
  CHECK(dtrain::base::memory_bounds(machine.path("")).empty());
}

TEST_CASE("Different control groups under one path are separate bounds, equal groups are not") {
  const auto bounds_of = [](const TempFolder& machine) {
    write_available(machine, 5000);
    machine.write("proc/sys/kernel/random/boot_id", "one-start\n");
    machine.write("proc/self/cgroup", "0::/\n");
    machine.write("proc/self/mountinfo",
                  "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
    write_v2(machine, "sys/fs/cgroup", in_bytes(1000));
    return dtrain::base::memory_bounds(machine.path(""));
  };
  const TempFolder first, second;
  const auto one = bounds_of(first);
  const auto other = bounds_of(second);
  REQUIRE(one.size() == 2);
  REQUIRE(other.size() == 2);
  CHECK(one[0].scope == other[0].scope);  // the machine's memory
  CHECK(one[1].scope != other[1].scope);
  CHECK(bounds_of(first)[1].scope == one[1].scope);
}

TEST_CASE("A need above four fifths of the available memory is tight, above all of it too large") {
  using dtrain::base::Fit;
  using dtrain::base::fit_of;
  CHECK(fit_of(0, 0) == Fit::well);
  CHECK(fit_of(800 * kMiB, 1000 * kMiB) == Fit::well);
  CHECK(fit_of(801 * kMiB, 1000 * kMiB) == Fit::tight);
  CHECK(fit_of(1000 * kMiB, 1000 * kMiB) == Fit::tight);
  CHECK(fit_of(1000 * kMiB + 1, 1000 * kMiB) == Fit::exceeds);
}

// A test cannot create control groups on every machine, so these read folders that imitate them.
void mount_v2(const TempFolder& machine) {
  machine.write("proc/self/cgroup", "0::/jobs/7\n");
  machine.write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  machine.write("cg/jobs/7/cpu.weight", "100\n");
}

TEST_CASE("The tightest quota of a group and its ancestors counts, in whole cores") {
  const TempFolder machine;
  mount_v2(machine);
  CHECK_FALSE(cpu_quota(machine.path("")));
  machine.write("cg/jobs/7/cpu.max", "max 100000\n");
  CHECK_FALSE(cpu_quota(machine.path("")));
  machine.write("cg/jobs/7/cpu.max", "350000 100000\n");
  CHECK(cpu_quota(machine.path("")) == 3);
  machine.write("cg/jobs/cpu.max", "50000 25000\n");
  CHECK(cpu_quota(machine.path("")) == 2);
  machine.write("cg/jobs/7/cpu.max", "20000 100000\n");
  CHECK(cpu_quota(machine.path("")) == 1);
}

TEST_CASE("Version 1 has quota and period in separate files") {
  const TempFolder machine;
  machine.write("proc/self/cgroup", "4:cpu,cpuacct:/fast\n");
  machine.write("proc/self/mountinfo", "32 23 0:29 / /cg rw - cgroup cgroup rw,cpu,cpuacct\n");
  machine.write("cg/fast/cpu.cfs_quota_us", "-1\n");
  machine.write("cg/fast/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cpu_quota(machine.path("")));
  machine.write("cg/fast/cpu.cfs_quota_us", "400000\n");
  CHECK(cpu_quota(machine.path("")) == 4);
}

TEST_CASE("A malformed file is no quota") {
  const TempFolder machine;
  mount_v2(machine);
  for (const char* text : {"", "1", "0 100000", "100000 0", "x y", "-5 100000"}) {
    machine.write("cg/jobs/7/cpu.max", text);
    CHECK_FALSE(cpu_quota(machine.path("")));
  }
}

}  // namespace
}  // namespace cgroup_test
