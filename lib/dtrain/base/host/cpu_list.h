// Lists of logical CPUs as the kernel writes them: "0-3,8".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::base {

/// Numbers of logical CPUs, ascending, each once.
using CpuList = std::vector<int>;

/// Returns nothing for a text that is no list. An empty one has no CPUs.
[[nodiscard]] std::optional<CpuList> parse_cpu_list(std::string_view text);
[[nodiscard]] std::string cpu_list_text(const CpuList& cpus);

/// Where the calling thread may run: where its process may, unless the thread was bound; empty where
/// it cannot be read.
[[nodiscard]] CpuList affinity_mask();

/// True where the mask leaves out some of the machine's CPUs, as that of a rank that its launcher has
/// bound.
[[nodiscard]] bool is_bound();
/// Binds the calling thread to `cpus`, if there are any. Returns false, with errno, if the system
/// refuses, which changes nothing. Makes system calls only, so a child of vfork may call it.
bool bind_thread(const CpuList& cpus);

}  // namespace dtrain::base
