#include "dtrain/base/slurm_step.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "dtrain/base/rank_env.h"
#include "support/messages.h"

namespace slurm_step_test {
namespace {

using dtrain::base::first_host_of;
using dtrain::base::port_of;
using Variables = std::map<std::string, std::string>;
using dtrain::testing::Names;

dtrain::base::EnvLookup lookup_in(const Variables& variables) {
  return [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
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

TEST_CASE("A step is read, and preferred to its job") {
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

TEST_CASE("A batch script is no step") {
  Variables batch = kStep;
  batch.erase("SLURM_STEP_ID");
  CHECK_FALSE(dtrain::base::read_slurm_step(lookup_in(batch)));
}

TEST_CASE("Ranks of a step meet at its own port") {
  const auto read = [](const Variables& variables) {
    return dtrain::base::read_rank_env(lookup_in(variables));
  };
  const auto env = read(kStep);
  REQUIRE(env.slurm_step);
  CHECK(env.master_port == port_of(*env.slurm_step));
  CHECK(env.threads_hint == 0);
  const auto threads_of = [&](const std::string& cores) {
    return read(Variables{{"SLURM_CPUS_PER_TASK", cores}} + kStep).threads_hint;
  };
  CHECK(threads_of("1") == 1);
  CHECK(threads_of("100000") == dtrain::base::usable_cores());  // more than the task may use
  CHECK(env.master_addr.empty());  // of a host whose address is still to be found

  Variables own = kStep;
  own.insert({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  CHECK(read(own).master_addr == "10.0.0.1");
  CHECK(read(own).master_port == 29500);

  Variables one_node = kStep;
  one_node["SLURM_STEP_NUM_NODES"] = "1";
  CHECK(read(one_node).master_addr == "127.0.0.1");
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

TEST_CASE("Hosts that make no sense are refused, naming the variable") {
  CHECK_THROWS_WITH(
      first_host_of({.num_nodes = 2, .hosts = "a[1-"}),
      Catch::Contains("SLURM_STEP_NODELIST: found \"a[1-\"") && Catch::Contains("MASTER_ADDR"));
  CHECK_THROWS_WITH(first_host_of({.num_nodes = 2}),
                    Names("SLURM_STEP_NODELIST", "2 nodes", "MASTER_ADDR"));
}

}  // namespace
}  // namespace slurm_step_test
