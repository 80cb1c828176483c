#include "dtrain/base/rank_env.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/slurm_step.h"
#include "support/messages.h"

namespace rank_env_test {
namespace {

using dtrain::base::expand_host_list;
using dtrain::base::first_host_of;
using dtrain::base::port_of;
using dtrain::base::RankEnv;
using Hosts = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;
using dtrain::testing::Names;

dtrain::base::EnvLookup lookup_in(const Variables& variables) {
  return [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

RankEnv read(const Variables& variables) {
  return dtrain::base::read_rank_env(lookup_in(variables));
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kDtrun = {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"GROUP_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "10.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"DTRUN_MASTER", "10.0.0.1:29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "3"},         {"SLURM_NTASKS", "9"},
                          {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},         {"SLURM_STEP_NUM_NODES", "2"}};

TEST_CASE("A process that nobody launched is rank 0 of 1") {
  const RankEnv env = read({});
  CHECK(env.rank == 0);
  CHECK(env.world_size == 1);
  CHECK(env.num_nodes == 1);
  CHECK(env.source.empty());
  CHECK(env.rendezvous.store.rendezvous_fd == -1);
  CHECK(env.control_fd == -1);
  CHECK_FALSE(env.launcher_terminal);
}

TEST_CASE("The launcher's variables are read") {
  const RankEnv env = read(kDtrun + Variables{{"DTRUN_STORE_FD", "5"},
                                              {"DTRUN_CONTROL_FD", "6"},
                                              {"DTRUN_TERMINAL", "1"},
                                              {"COLUMNS", "120"},
                                              {"GLOO_SOCKET_IFNAME", "ib0,eth0"},
                                              {"OMP_NUM_THREADS", "3,2"}});
  CHECK(env.rank == 5);
  CHECK(env.world_size == 8);
  CHECK(env.local_rank == 1);
  CHECK(env.local_world_size == 4);
  CHECK(env.node_rank == 1);
  CHECK(env.num_nodes == 2);
  CHECK(env.source == "RANK");
  CHECK(env.rendezvous.master_addr == "10.0.0.1");
  CHECK(env.rendezvous.master_port == 29500);
  CHECK(env.rendezvous.store.rendezvous_fd == 5);
  CHECK(env.control_fd == 6);
  CHECK(env.gloo_interfaces == "ib0,eth0");
  CHECK(env.threads_hint == 3);
  CHECK(env.terminal_columns == 120);
  CHECK(env.launcher_terminal);
}

TEST_CASE("Under torchrun, whose store occupies rank 0's port, each attempt has its own key") {
  CHECK(read(kDtrun).rendezvous.agent_store_key.empty());
  const Variables torchrun = kDtrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                {"TORCHELASTIC_RESTART_COUNT", "2"}};
  CHECK(read(torchrun).rendezvous.agent_store_key == "dtrain/2");
  const Variables unshared = kDtrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  CHECK(read(unshared).rendezvous.agent_store_key.empty());
}

TEST_CASE("dtrun's port takes precedence over MASTER_PORT, unless other ranks inherited it") {
  const Variables store = {
      {"DTRUN_STORE_FD", "5"}, {"DTRUN_STORE_PORT", "40000"}, {"DTRUN_STORE_LISTENER_FD", "7"}};
  const Variables dtrun = kDtrun + store;
  CHECK(read(kDtrun).rendezvous.store_port() == 29500);
  CHECK(read(dtrun).rendezvous.store_port() == 40000);
  CHECK(read(dtrun).rendezvous.store.listener_fd == 7);
  CHECK(read(dtrun).rendezvous.master_port == 29500);
  const RankEnv below = read(dtrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  CHECK(below.rendezvous.store_port() == 29500);
  CHECK(below.rendezvous.store.listener_fd == -1);
  for (const Variables& changed :
       {Variables{{"MASTER_ADDR", "10.0.0.2"}}, Variables{{"MASTER_PORT", "29501"}}}) {
    const RankEnv other = read(changed + dtrun);
    CHECK(other.rendezvous.store_port() == other.rendezvous.master_port);
    CHECK(other.rendezvous.store.rendezvous_fd == -1);
    CHECK(other.rendezvous.store.listener_fd == -1);
  }
}

TEST_CASE("Open MPI, PMI and SLURM name the rank") {
  const RankEnv mpi = read(kOpenMpi);
  CHECK(mpi.rank == 1);
  CHECK(mpi.world_size == 4);
  CHECK(mpi.local_world_size == 2);
  CHECK(mpi.num_nodes == 2);
  // As on the second node of `mpirun --host a:3,b:1`.
  const Variables uneven = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                            {"OMPI_MCA_orte_num_nodes", "2"}};
  CHECK(read(uneven).num_nodes == 2);

  const RankEnv pmi = read({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}});
  CHECK(pmi.rank == 2);
  CHECK(pmi.world_size == 3);

  const RankEnv slurm = read(kSlurm);
  CHECK(slurm.rank == 3);
  CHECK(slurm.world_size == 4);  // of the step, not of the job
  CHECK(slurm.local_rank == 1);
  CHECK(slurm.local_world_size == 2);
  CHECK(slurm.node_rank == 1);
  CHECK(slurm.in_slurm);
}

TEST_CASE("A batch script is no task of a step") {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  const RankEnv env = read(batch);
  CHECK(env.world_size == 1);
  CHECK(env.in_slurm);
}

TEST_CASE("Two sources that disagree are rejected, naming both") {
  const Variables stale = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  CHECK_THROWS_WITH(read(stale + kOpenMpi),
                    Names("RANK", "rank 0 of 1", "OMPI_COMM_WORLD_RANK", "rank 1 of 4"));
  CHECK_THROWS_WITH(read(stale + kSlurm),
                    Names("RANK", "rank 0 of 1", "SLURM_PROCID", "rank 3 of 4"));
  const Variables agreeing = {{"RANK", "3"}, {"WORLD_SIZE", "4"}};
  CHECK(read(agreeing + kSlurm).rank == 3);
}

TEST_CASE("A launcher that is itself a task takes precedence") {
  const Variables under_agent = kDtrun + Variables{{"TORCHELASTIC_RUN_ID", "x"}} + kSlurm;
  CHECK(read(under_agent).rank == 5);
  Variables daemons = kSlurm;  // mpirun's, one a node
  daemons["SLURM_STEP_NUM_TASKS"] = "2";
  daemons["SLURM_PROCID"] = "0";
  CHECK(read(kOpenMpi + daemons).rank == 1);
}

TEST_CASE("The step takes precedence over the PMI variables of srun --mpi=pmi2") {
  const RankEnv env = read(kSlurm + Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}});
  CHECK(env.source == "SLURM_PROCID");
  CHECK(env.local_rank == 1);
  CHECK(env.num_nodes == 2);
  CHECK(env.rendezvous.master_port != 0);
  CHECK(env.slurm_step);

  Variables one_task_a_node = kSlurm;
  one_task_a_node["SLURM_STEP_NUM_TASKS"] = "2";
  one_task_a_node["SLURM_PROCID"] = "1";
  CHECK(read(one_task_a_node + Variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).slurm_step);
  // MPICH's launcher: both ranks are on this node, and the step is one of its daemons.
  const Variables hydra = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  CHECK(read(one_task_a_node + hydra).source == "PMI_RANK");
}

TEST_CASE("The launch id and restart count are read") {
  const RankEnv env = read({{"TORCHELASTIC_RUN_ID", "a-1"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_MAX_RESTARTS", "3"},
                            {"DTRUN_RESTART_REASON", "rank 1 failed"}});
  CHECK(env.launch == "a-1");
  CHECK(env.restart_count == 2);
  CHECK(env.max_restarts == 3);
  CHECK(env.restart_reason == "rank 1 failed");
  CHECK(read({{"TORCHELASTIC_RUN_ID", "none"}}).launch.empty());  // torchrun's for every launch
  CHECK(read({}).restart_count == 0);
  CHECK_THROWS_WITH(read({{"TORCHELASTIC_RESTART_COUNT", "-1"}}),
                    Catch::Contains("TORCHELASTIC_RESTART_COUNT"));
}

TEST_CASE("Invalid values are rejected, naming the variable") {
  CHECK_THROWS_WITH(read({{"RANK", "zero"}, {"WORLD_SIZE", "2"}}),
                    Catch::Contains("RANK: found \"zero\""));
  CHECK_THROWS_WITH(read({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), Catch::Contains("WORLD_SIZE"));
  CHECK_THROWS_WITH(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Names("RANK 2", "WORLD_SIZE 2"));
  CHECK_THROWS_WITH(read({{"RANK", "0"}}), Names("RANK", "WORLD_SIZE"));
  CHECK_THROWS_WITH(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
                    Catch::Contains("MASTER_PORT"));
  CHECK_THROWS_WITH(read({{"OMP_NUM_THREADS", "many"}}), Catch::Contains("OMP_NUM_THREADS"));
  CHECK_THROWS_WITH(read(kDtrun + Variables{{"DTRUN_STORE_FD", "-3"}}),
                    Catch::Contains("DTRUN_STORE_FD"));
  CHECK_THROWS_WITH(
      read({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      Catch::Contains("LOCAL_RANK 2"));
}

TEST_CASE("A command typed in a shell of srun --pty is a separate job") {
  const pid_t shell = ::fork();
  if (shell == 0) {
    ::setpgid(0, 0);
    ::pause();
  }
  ::setpgid(shell, shell);
  Variables typed = kSlurm;
  typed["SLURM_PTY_PORT"] = "4711";
  typed["SLURM_TASK_PID"] = std::to_string(shell);
  const RankEnv env = read(typed);
  CHECK((env.rank == 0 && env.world_size == 1 && env.num_nodes == 1));
  CHECK(env.tasks_of_shell == 4);
  Variables of_pmi2 = typed;  // of srun --mpi=pmi2
  of_pmi2["SLURM_PROCID"] = "0";
  CHECK(read(of_pmi2 + Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}).world_size == 1);
  Variables script = typed;  // a task whose commands are in its own process group
  script["SLURM_TASK_PID"] = std::to_string(::getpid());
  CHECK(read(script).world_size == 4);
  typed.erase("SLURM_PTY_PORT");
  CHECK(read(typed).world_size == 4);
  CHECK(read(typed).tasks_of_shell == 0);
  ::kill(shell, SIGKILL);
  ::waitpid(shell, nullptr, 0);
}

TEST_CASE("There is at least one usable core") { CHECK(dtrain::base::usable_cores() >= 1); }

TEST_CASE("The committed step is that of the named run") {
  constexpr const char* kName = "DTRUN_COMMITTED";
  ::setenv(kName, "=3 first=100 a=b=10 broken=x alone", 1);
  for (const auto& [run, step] :
       {std::pair("first", 100), std::pair("a=b", 10), std::pair("", 3), std::pair("broken", -1),
        std::pair("alone", -1), std::pair("a", -1), std::pair("fir", -1)}) {
    CHECK(dtrain::base::committed_step_of_process(run) == step);
  }
  ::unsetenv(kName);
  CHECK(dtrain::base::committed_step_of_process("first") == -1);
}

TEST_CASE("A later attempt of a job is a restart") {
  constexpr const char* kName = "TORCHELASTIC_RESTART_COUNT";
  for (const auto& [count, is_restart] :
       {std::pair("0", false), std::pair("1", true), std::pair("12", true), std::pair("", false)}) {
    ::setenv(kName, count, 1);
    CHECK(dtrain::base::is_restart_of_process() == is_restart);
  }
  ::unsetenv(kName);
  CHECK_FALSE(dtrain::base::is_restart_of_process());
}

TEST_CASE("Streams have 32 hardware queues unless the user has chosen a number") {
  constexpr const char* kName = "CUDA_DEVICE_MAX_CONNECTIONS";
  for (const auto& [given, expected] :
       {std::pair("1", "1"), std::pair("", ""), std::pair("8", "8")}) {
    ::setenv(kName, given, 1);
    dtrain::base::set_cuda_hardware_queues();
    CHECK(std::getenv(kName) == std::string(expected));
  }
  ::unsetenv(kName);
  dtrain::base::set_cuda_hardware_queues();
  CHECK(std::getenv(kName) == std::string("32"));
  ::unsetenv(kName);
}

TEST_CASE("Kernels are loaded before anything runs unless the user has chosen otherwise") {
  constexpr const char* kName = "CUDA_MODULE_LOADING";
  ::setenv(kName, "LAZY", 1);
  dtrain::base::disable_lazy_kernel_loading();
  CHECK(std::getenv(kName) == std::string("LAZY"));
  ::unsetenv(kName);
  dtrain::base::disable_lazy_kernel_loading();
  CHECK(std::getenv(kName) == std::string("EAGER"));
  ::unsetenv(kName);
}

TEST_CASE("The NCCL interface is set unless the user has set one") {
  ::setenv("NCCL_SOCKET_IFNAME", "", 1);  // as good as unset
  for (const char* name : {"ib0", "eth0"}) {
    dtrain::base::set_nccl_interface(name);
    CHECK(std::getenv("NCCL_SOCKET_IFNAME") == std::string("=ib0"));
  }
  ::unsetenv("NCCL_SOCKET_IFNAME");
}

TEST_CASE("The variable CUDA_VISIBLE_DEVICES hides GPUs as it does for CUDA") {
  using dtrain::base::visible_gpus;
  CHECK(visible_gpus(nullptr, 2) == 2);
  CHECK(visible_gpus("", 2) == 0);
  CHECK(visible_gpus("-1", 2) == 0);
  CHECK(visible_gpus("1", 2) == 1);
  CHECK(visible_gpus("1,0", 2) == 2);
  CHECK(visible_gpus("0,-1,1", 2) == 1);
  CHECK(visible_gpus("0,7", 2) == 1);
  CHECK(visible_gpus("GPU-8932f937-d72c,GPU-11", 2) == 2);
  CHECK(visible_gpus("none", 2) == 0);
  CHECK(visible_gpus("0", 0) == 0);
}

const Variables kStep = {{"SLURM_JOB_ID", "70"},
                         {"SLURM_STEP_ID", "3"},
                         {"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "9"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_STEP_NODELIST", "a[7-8]"},
                         {"SLURM_JOB_NODELIST", "a[1-8]"},
                         {"SLURM_CPUS_ON_NODE", "6"}};

TEST_CASE("A step is read, and takes precedence over its job") {
  const auto step = dtrain::base::read_slurm_step(lookup_in(kStep));
  REQUIRE(step);
  CHECK(step->job_id == 70);
  CHECK(step->step_id == 3);
  CHECK(step->num_tasks == 4);
  CHECK(step->num_nodes == 2);
  CHECK(step->node == 1);
  CHECK(step->cores == 6);
  CHECK(step->gpus == 0);
  CHECK(first_host_of(*step) == "a7");
}

TEST_CASE("A step has its own rendezvous port") {
  const auto env = read(kStep);
  REQUIRE(env.slurm_step);
  CHECK(env.rendezvous.master_port == port_of(*env.slurm_step));
  CHECK(env.threads_hint == 0);
  const auto threads_of = [&](const std::string& cores) {
    return read(Variables{{"SLURM_CPUS_PER_TASK", cores}} + kStep).threads_hint;
  };
  CHECK(threads_of("1") == 1);
  CHECK(threads_of("100000") == dtrain::base::usable_cores());  // more than the task may use
  CHECK(env.rendezvous.master_addr.empty());  // of a host whose address is still to be found

  Variables own = kStep;
  own.insert({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  CHECK(read(own).rendezvous.master_addr == "10.0.0.1");
  CHECK(read(own).rendezvous.master_port == 29500);

  Variables one_node = kStep;
  one_node["SLURM_STEP_NUM_NODES"] = "1";
  CHECK(read(one_node).rendezvous.master_addr == "127.0.0.1");
}

TEST_CASE("Steps that may run at the same time have different ports within the range") {
  std::set<std::int64_t> ports;
  for (std::int64_t job = 1'000'000; job < 1'000'080; ++job) {
    for (std::int64_t step = 0; step < 61; ++step) {
      const auto port = port_of({.job_id = job, .step_id = step});
      CHECK((port >= 20'000 && port <= 29'998 && port % 2 == 0));
      ports.insert(port);
    }
  }
  CHECK(ports.size() == 80 * 61);
}

TEST_CASE("Malformed host lists are rejected, naming the variable") {
  CHECK_THROWS_WITH(
      first_host_of({.num_nodes = 2, .hosts = "a[1-"}),
      Catch::Contains("SLURM_STEP_NODELIST: found \"a[1-\"") && Catch::Contains("MASTER_ADDR"));
  CHECK_THROWS_WITH(first_host_of({.num_nodes = 2}),
                    Names("SLURM_STEP_NODELIST", "2 nodes", "MASTER_ADDR"));
}

TEST_CASE("Ranges, lists and names of a host list are expanded in their order") {
  CHECK(expand_host_list("n1") == Hosts{"n1"});
  CHECK(expand_host_list("a[01-03,7],b5") == Hosts{"a01", "a02", "a03", "a7", "b5"});
  CHECK(expand_host_list("b,a") == Hosts{"b", "a"});
  CHECK(expand_host_list("n[8-11]") == Hosts{"n8", "n9", "n10", "n11"});
  CHECK(expand_host_list("n[008-010]") == Hosts{"n008", "n009", "n010"});
  CHECK(expand_host_list("[1-2].example.org") == Hosts{"1.example.org", "2.example.org"});
}

TEST_CASE("Names may continue after brackets, and have several") {
  CHECK(expand_host_list("gpu[1,3]-ib") == Hosts{"gpu1-ib", "gpu3-ib"});
  CHECK(expand_host_list("r[1-2]n[1-2]x") == Hosts{"r1n1x", "r1n2x", "r2n1x", "r2n2x"});
}

TEST_CASE("A malformed host list has no hosts") {
  for (const char* list : {"",
                           ",",
                           "a,",
                           ",a",
                           "a[",
                           "a]",
                           "a[]",
                           "a[1",
                           "a1]",
                           "a[1-]",
                           "a[-1]",
                           "a[3-1]",
                           "a[x]",
                           "a[1,]",
                           "a[1--2]",
                           "a[[1]]",
                           "a[1]]",
                           "a[1 ]",
                           "a[1234567890]",
                           "a[1-2,b]"}) {
    INFO(list);
    CHECK_FALSE(expand_host_list(list));
  }
}

TEST_CASE("The size of a host list is limited") {
  CHECK(expand_host_list("n[1-65536]")->size() == 65'536);
  CHECK_FALSE(expand_host_list("n[1-65537]"));
  CHECK_FALSE(expand_host_list("n[0-999999999]"));
  CHECK_FALSE(expand_host_list("n[1-1000][1-1000]"));
  CHECK(expand_host_list(std::string(255, 'x')));
  CHECK_FALSE(expand_host_list(std::string(256, 'x')));
  std::string brackets;  // one host, but a deep recursion
  for (int i = 0; i < 100'000; ++i) brackets += "[1]";
  CHECK_FALSE(expand_host_list(brackets));
}

}  // namespace
}  // namespace rank_env_test
