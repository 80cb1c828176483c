// Selects the CPUs that each rank may run on (--bind).
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/host/cpu_list.h"

namespace launcher {

/// The value of --bind: no binding, whole cores per rank, or the CPUs of a NUMA node.
enum class Bind { none, cores, numa };

/// A logical CPU that dtrun may use.
struct Cpu {
  int number = 0;
  int core = 0;  // physical; logical CPUs of one core are siblings
  int node = 0;  // NUMA
};

/// The CPUs of each rank of this dtrun.
struct CpuBinding {
  std::vector<dtrain::base::CpuList> masks;  // by local rank; empty: not bound
  int threads = 0;  // per rank: the fewest CPUs that any rank has; 0: not bound
};

/// The CPUs of dtrun's affinity mask, as /sys/devices/system describes them.
///
/// root: prefix of /sys, for tests.
[[nodiscard]] std::vector<Cpu> read_topology(const dtrain::base::CpuList& usable,
                                             const std::string& root = {});

/// cores: each rank gets the same number of adjacent whole cores, including all siblings.
/// numa: ranks are spread over the nodes in order, and share the CPUs of their node.
///
/// Throws: Error{usage} for more ranks than cores (or, with numa, than CPUs).
[[nodiscard]] CpuBinding bind_ranks(Bind how, const std::vector<Cpu>& cpus, int num_ranks);

/// "ranks bound to cores: 0 to CPUs 0-3; 1 to CPUs 4-7".
///
/// first_rank: the job's index of the rank that has the first mask.
[[nodiscard]] std::string describe(Bind how, const CpuBinding& binding, int first_rank);

}  // namespace launcher
