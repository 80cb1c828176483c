#include "launcher/local/bind.h"

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/host/cpu_list.h"
#include "launcher/option_values.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace bind_test {
namespace {

using dtrain::base::cpu_list_text;
using dtrain::base::CpuList;
using dtrain::base::parse_cpu_list;
using dtrain::testing::Names;
using launcher::Bind;
using launcher::bind_ranks;
using launcher::Cpu;
using Texts = std::vector<std::string>;
using dtrain::base::SlurmStep;
using launcher::Options;
using Given = std::vector<std::string>;

// Two sockets of four cores with two siblings each, numbered as Intel's machines are: core c has
// CPUs c and c + 8, socket 0 the cores 0 to 3.
std::vector<Cpu> two_sockets() {
  std::vector<Cpu> cpus;
  for (int cpu = 0; cpu < 16; ++cpu) cpus.push_back({cpu, cpu % 8, cpu % 8 / 4});
  return cpus;
}

std::vector<Cpu> only(const std::vector<Cpu>& all, const CpuList& kept) {
  std::vector<Cpu> cpus;
  for (const int number : kept) cpus.push_back(all[static_cast<std::size_t>(number)]);
  return cpus;
}

std::vector<std::string> masks(Bind how, const std::vector<Cpu>& cpus, int num_ranks) {
  std::vector<std::string> texts;
  for (const auto& mask : bind_ranks(how, cpus, num_ranks).masks)
    texts.push_back(cpu_list_text(mask));
  return texts;
}

TEST_CASE("Ranks get whole cores side by side, as many each") {
  CHECK(masks(Bind::cores, two_sockets(), 1) == Texts{"0-15"});
  CHECK(masks(Bind::cores, two_sockets(), 2) == Texts{"0-3,8-11", "4-7,12-15"});
  CHECK(masks(Bind::cores, two_sockets(), 3) == Texts{"0-1,8-9", "2-3,10-11", "4-5,12-13"});
  CHECK(masks(Bind::cores, two_sockets(), 8).back() == "7,15");
  CHECK(bind_ranks(Bind::cores, two_sockets(), 3).threads == 4);
}

TEST_CASE("Holes in the affinity mask belong to nobody, and threads follow the least rank") {
  const auto cpus = only(two_sockets(), {1, 2, 5, 9, 13});  // cores 1 and 5 whole, half of core 2
  CHECK(masks(Bind::cores, cpus, 3) == Texts{"1,9", "2", "5,13"});
  CHECK(bind_ranks(Bind::cores, cpus, 3).threads == 1);
  CHECK(masks(Bind::cores, cpus, 1) == Texts{"1-2,5,9,13"});
}

TEST_CASE("Cores of a node stay side by side where their numbers alternate between nodes") {
  std::vector<Cpu> cpus;
  for (int cpu = 0; cpu < 8; ++cpu) cpus.push_back({cpu, cpu, cpu % 2});
  CHECK(masks(Bind::cores, cpus, 2) == Texts{"0,2,4,6", "1,3,5,7"});
  CHECK(masks(Bind::cores, cpus, 4) == Texts{"0,2", "4,6", "1,3", "5,7"});
}

TEST_CASE("One core serves one rank, and more ranks than cores are refused") {
  CHECK(masks(Bind::cores, {{3, 3, 0}}, 1) == Texts{"3"});
  CHECK_THROWS_WITH(bind_ranks(Bind::cores, {{3, 3, 0}}, 2),
                    Names("--bind cores", "2 ranks", "1 core"));
  CHECK_THROWS_AS(bind_ranks(Bind::cores, two_sockets(), 9), dtrain::base::Error);
}

TEST_CASE("With numa, ranks are spread over nodes and share their node's CPUs") {
  CHECK(masks(Bind::numa, two_sockets(), 1) == Texts{"0-3,8-11"});
  CHECK(masks(Bind::numa, two_sockets(), 2) == Texts{"0-3,8-11", "4-7,12-15"});
  CHECK(masks(Bind::numa, two_sockets(), 3) == Texts{"0-3,8-11", "0-3,8-11", "4-7,12-15"});
  CHECK(bind_ranks(Bind::numa, two_sockets(), 2).threads == 8);
  CHECK(bind_ranks(Bind::numa, two_sockets(), 3).threads == 4);
  CHECK(bind_ranks(Bind::numa, two_sockets(), 16).threads == 1);
  CHECK_THROWS_AS(bind_ranks(Bind::numa, two_sockets(), 17), dtrain::base::Error);
}

TEST_CASE("Without --bind no rank is bound") {
  CHECK(bind_ranks(Bind::none, two_sockets(), 64).masks.empty());
}

TEST_CASE("Topology is read from /sys; what it does not say is a core of its own on node 0") {
  const dtrain::testing::TempFolder machine;
  machine.write("sys/devices/system/node/online", "0,2\n");
  machine.write("sys/devices/system/node/node0/cpulist", "0-1,4\n");
  machine.write("sys/devices/system/node/node2/cpulist", "2-3,6\n");
  machine.write("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,6\n");
  machine.write("sys/devices/system/cpu/cpu6/topology/thread_siblings_list", "2,6\n");
  const auto cpus = launcher::read_topology({0, 2, 6, 9}, machine.path(""));
  std::vector<std::vector<int>> found;
  for (const Cpu& cpu : cpus) found.push_back({cpu.number, cpu.core, cpu.node});
  CHECK(found == std::vector<std::vector<int>>{{0, 0, 0}, {2, 2, 2}, {6, 2, 2}, {9, 9, 0}});
}

TEST_CASE("Lists of CPUs are read and written as the kernel does") {
  for (const char* text : {"", "0", "0-3", "0-1,3,5-7"})
    CHECK(cpu_list_text(*parse_cpu_list(text)) == text);
  CHECK(cpu_list_text(*parse_cpu_list("3,1,2-3\n")) == "1-3");
  for (const char* text : {"a", "1-", "-1", "3-1", "1,,2", "0-99999999", "1 2"}) {
    CHECK_FALSE(parse_cpu_list(text));
  }
}

const SlurmStep kStep = {.job_id = 1,
                         .step_id = 2,
                         .num_tasks = 4,
                         .num_nodes = 4,
                         .node = 3,
                         .hosts = "192.0.2.[1-4]",
                         .cores = 1};

Options filled(const SlurmStep& step, Given given = {}) {
  Options options;
  take_from_slurm(step, options, given);
  return options;
}

TEST_CASE("A dtrun on each node of a step is one of the job's nodes") {
  const Options options = filled(kStep);
  CHECK(options.num_nodes == 4);
  CHECK(options.node_rank == 3);
  CHECK(options.num_ranks == 1);
  CHECK(options.master_addr == "192.0.2.1");
  CHECK(options.master_port == 20'126);
}

TEST_CASE("Ranks are the step's GPUs, else its cores") {
  SlurmStep step = kStep;
  step.gpus = 3;
  CHECK(filled(step).num_ranks == 3);
  CHECK(filled(step, {"--nproc-per-node"}).num_ranks == 1);
  step = {};
  step.cores = 1 << 20;
  const int usable = filled(step).num_ranks;
  CHECK((usable >= 1 && usable < 1 << 20));
}

TEST_CASE("The command line wins over the step") {
  for (const char* option : {"--nnodes", "--standalone", "--emulate-nodes"}) {
    CHECK(filled(kStep, {option}).num_nodes == 1);
  }
  CHECK(filled(kStep, {"--master-addr"}).master_addr == "127.0.0.1");
  CHECK(filled(kStep, {"--master-port"}).master_port == 0);
  CHECK(filled(kStep, {"--node-rank"}).node_rank == 0);
}

TEST_CASE("Several tasks on a node are refused") {
  SlurmStep step = kStep;
  step.num_tasks = 8;
  CHECK_THROWS_WITH(filled(step), Names("8 dtruns", "4 nodes", "--ntasks-per-node=1"));
}

}  // namespace
}  // namespace bind_test
