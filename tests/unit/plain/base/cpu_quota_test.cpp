#include <catch2/catch.hpp>

#include "dtrain/base/available_resources.h"
#include "support/temp_folder.h"

// A machine's control groups cannot be made in every test, so these read folders that look like
// one's.
namespace cpu_quota_test {
namespace {

using dtrain::base::cpu_quota;
using dtrain::testing::TempFolder;

void mount_v2(const TempFolder& machine) {
  machine.write("proc/self/cgroup", "0::/jobs/7\n");
  machine.write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  machine.write("cg/jobs/7/cpu.weight", "100\n");
}

TEST_CASE("The tightest quota of a group and of those above it counts, in whole cores") {
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

TEST_CASE("Version 1 has quota and period in files of their own") {
  const TempFolder machine;
  machine.write("proc/self/cgroup", "4:cpu,cpuacct:/fast\n");
  machine.write("proc/self/mountinfo", "32 23 0:29 / /cg rw - cgroup cgroup rw,cpu,cpuacct\n");
  machine.write("cg/fast/cpu.cfs_quota_us", "-1\n");
  machine.write("cg/fast/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cpu_quota(machine.path("")));
  machine.write("cg/fast/cpu.cfs_quota_us", "400000\n");
  CHECK(cpu_quota(machine.path("")) == 4);
}

TEST_CASE("A file that makes no sense is no quota") {
  const TempFolder machine;
  mount_v2(machine);
  for (const char* text : {"", "1", "0 100000", "100000 0", "x y", "-5 100000"}) {
    machine.write("cg/jobs/7/cpu.max", text);
    CHECK_FALSE(cpu_quota(machine.path("")));
  }
}

}  // namespace
}  // namespace cpu_quota_test
