// Lists of logical CPUs in the kernel's format, "0-3,8", and thread affinity.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// Logical CPU numbers, ascending, without duplicates.
using CpuList = std::vector<int>;

/// Parses a list; empty optional if it is malformed. An empty string is an empty list.
[[nodiscard]] std::optional<CpuList> parse_cpu_list(std::string_view text);
[[nodiscard]] std::string cpu_list_text(const CpuList& cpus);

/// The CPUs on which the calling thread may run; empty if they cannot be read.
[[nodiscard]] CpuList affinity_mask();
/// Returns whether affinity_mask() excludes some of the machine's CPUs, e.g. because a launcher has
/// bound the rank.
[[nodiscard]] bool is_bound();
/// Binds the calling thread to `cpus`; no-op if empty. On failure, returns false with errno set and
/// changes nothing. Only makes system calls, so a child of vfork may call it.
bool bind_thread(const CpuList& cpus);

}  // namespace dtrain::base
