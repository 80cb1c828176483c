#include "launcher/local/bind.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"

namespace launcher {
namespace {

using dtrain::base::CpuList;
using dtrain::base::ErrorKind;

std::optional<CpuList> list_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return dtrain::base::parse_cpu_list(line);
}

// The NUMA node of each CPU. Empty on a kernel without NUMA: all CPUs are on node 0.
std::map<int, int> read_nodes(const std::string& system) {
  std::map<int, int> node_of;
  for (const int node : list_in(system + "/node/online").value_or(CpuList{})) {
    const auto cpus = list_in(fmt::format("{}/node/node{}/cpulist", system, node));
    for (const int cpu : cpus.value_or(CpuList{})) node_of[cpu] = node;
  }
  return node_of;
}

// The CPUs of each core, with the cores ordered by NUMA node.
std::vector<CpuList> cores_of(const std::vector<Cpu>& cpus) {
  std::map<std::pair<int, int>, CpuList> cores;  // by node and core
  for (const Cpu& cpu : cpus) cores[{cpu.node, cpu.core}].push_back(cpu.number);
  std::vector<CpuList> result;
  for (auto& [place, list] : cores) result.push_back(std::move(list));
  return result;
}

void require_room(int num_ranks, std::size_t places, const char* how, const char* what) {
  if (num_ranks <= static_cast<int>(places)) return;
  dtrain::base::fail(ErrorKind::usage,
                     "--bind {}: {} ranks, but dtrun may use {} {}: start fewer, or leave it out",
                     how, num_ranks, places, what);
}

CpuBinding bind_to_cores(const std::vector<Cpu>& cpus, int num_ranks) {
  const std::vector<CpuList> cores = cores_of(cpus);
  require_room(num_ranks, cores.size(), "cores", cores.size() == 1 ? "core" : "cores");
  const std::size_t share = cores.size() / static_cast<std::size_t>(num_ranks);
  CpuBinding binding;
  for (auto core = cores.begin(); std::ssize(binding.masks) < num_ranks;) {
    CpuList mask;
    for (std::size_t i = 0; i < share; ++i, ++core)
      mask.insert(mask.end(), core->begin(), core->end());
    std::ranges::sort(mask);
    binding.masks.push_back(std::move(mask));
  }
  const auto least = std::ranges::min_element(binding.masks, {}, &CpuList::size);
  binding.threads = static_cast<int>(least->size());
  return binding;
}

CpuBinding bind_to_nodes(const std::vector<Cpu>& cpus, int num_ranks) {
  require_room(num_ranks, cpus.size(), "numa", cpus.size() == 1 ? "CPU" : "CPUs");
  std::map<int, CpuList> lists;
  for (const Cpu& cpu : cpus) lists[cpu.node].push_back(cpu.number);
  std::vector<CpuList> nodes;
  for (auto& [node, list] : lists) nodes.push_back(std::move(list));
  const auto count = static_cast<int>(nodes.size());
  std::vector<int> ranks_on(nodes.size(), 0);
  const auto node_of = [&](int rank) { return static_cast<std::size_t>(rank * count / num_ranks); };
  for (int rank = 0; rank < num_ranks; ++rank) ++ranks_on[node_of(rank)];
  CpuBinding binding{.masks = {}, .threads = static_cast<int>(cpus.size())};
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::size_t node = node_of(rank);
    binding.masks.push_back(nodes[node]);
    const int share = static_cast<int>(nodes[node].size()) / ranks_on[node];
    binding.threads = std::max(1, std::min(binding.threads, share));
  }
  return binding;
}

}  // namespace

std::vector<Cpu> read_topology(const CpuList& usable, const std::string& root) {
  const std::string system = root + "/sys/devices/system";
  const std::map<int, int> node_of = read_nodes(system);
  std::vector<Cpu> cpus;
  for (const int number : usable) {
    const auto siblings =
        list_in(fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", system, number));
    const auto node = node_of.find(number);
    cpus.push_back({.number = number,
                    .core = siblings && !siblings->empty() ? siblings->front() : number,
                    .node = node == node_of.end() ? 0 : node->second});
  }
  return cpus;
}

CpuBinding bind_ranks(Bind how, const std::vector<Cpu>& cpus, int num_ranks) {
  if (how == Bind::none) return {};
  return how == Bind::cores ? bind_to_cores(cpus, num_ranks) : bind_to_nodes(cpus, num_ranks);
}

std::string describe(Bind how, const CpuBinding& binding, int first_rank) {
  std::vector<std::string> parts;
  int rank = first_rank;
  for (const CpuList& mask : binding.masks) {
    parts.push_back(fmt::format("{} to CPUs {}", rank, dtrain::base::cpu_list_text(mask)));
    ++rank;
  }
  return fmt::format("ranks bound to {}: {}", how == Bind::cores ? "cores" : "NUMA nodes",
                     dtrain::base::list_text(parts, "; "));
}

}  // namespace launcher
