// Determines the CPU types of ranks, on which rounding depends, and compares them over all ranks.
#pragma once

#include <string>

#include "dtrain/comm/process_group.h"

namespace dtrain::job {

/// Returns the type of this process's CPU: ATen's capability, and the criteria by which oneDNN and
/// MKL select instructions (vendor, vector instructions, environment settings). Processes with
/// equal types compute equal bits. Example: "AVX2/AMD:avx2,avx512,vnni,bf16".
[[nodiscard]] std::string cpu_type();

/// The CPU types of all ranks. text: the common type, or each type with its ranks.
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
