#include "dtrain/base/host/cpu_list.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "dtrain/base/text/number.h"

namespace dtrain::base {
namespace {

constexpr int kMaxCpus = 1 << 13;  // that Linux can be built for
using CpuSet = std::array<cpu_set_t, kMaxCpus / CPU_SETSIZE>;

// "3" or "0-3".
bool add_range(std::string_view text, CpuList& cpus) {
  const std::size_t dash = text.find('-');
  const auto first = number_in<int>(text.substr(0, dash));
  const auto last = dash == text.npos ? first : number_in<int>(text.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first || *last >= kMaxCpus) return false;
  for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  return true;
}

}  // namespace

std::optional<CpuList> parse_cpu_list(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  CpuList cpus;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    if (!add_range(text.substr(0, comma), cpus)) return std::nullopt;
    text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
  }
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (std::size_t begin = 0; begin < cpus.size();) {
    std::size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end - begin == 1 ? fmt::format("{}", cpus[begin])
                             : fmt::format("{}-{}", cpus[begin], cpus[end - 1]);
    begin = end;
  }
  return text;
}

CpuList affinity_mask() {
  CpuSet set{};
  CpuList cpus;
  if (::sched_getaffinity(0, sizeof(set), set.data()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), sizeof(set), set.data())) cpus.push_back(cpu);
  }
  return cpus;
}

bool bind_thread(const CpuList& cpus) {
  CpuSet set{};
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), sizeof(set), set.data());
  return cpus.empty() || ::sched_setaffinity(0, sizeof(set), set.data()) == 0;
}

bool is_bound() { return std::ssize(affinity_mask()) < ::sysconf(_SC_NPROCESSORS_ONLN); }

}  // namespace dtrain::base
