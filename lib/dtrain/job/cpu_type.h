// The type of a rank's CPU, which decides how it rounds; compares it over all ranks.
#pragma once

#include <string>

#include "dtrain/comm/process_group.h"

namespace dtrain::job {

/// The type of CPU that this process computes on: ATen's capability, and what oneDNN and MKL choose
/// their instructions by (maker, vector instructions, settings in the environment). Processes with
/// equal types compute equal bits: "AVX2/AMD:avx2,avx512,vnni,bf16".
[[nodiscard]] std::string cpu_type();

/// How the types of all ranks are told: the type, or, where they differ, each with its ranks.
struct CpuTypes {
  std::string text;
  bool are_mixed = false;
};

/// Compares the CPU types of all ranks.
///
/// own:        cpu_type() of this rank.
/// may_differ: machine.mixed_cpus.
/// Collective: every rank of `world`.
/// Throws:     Error{usage}, the same on every rank, naming the types and the ranks that have them,
///             if they differ and may not.
[[nodiscard]] CpuTypes agree_on_cpu_types(comm::ProcessGroup& world, const std::string& own,
                                          bool may_differ);

}  // namespace dtrain::job
