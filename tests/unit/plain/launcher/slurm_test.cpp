#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "launcher/option_values.h"
#include "support/messages.h"

namespace slurm_test {
namespace {

using dtrain::base::SlurmStep;
using launcher::Options;
using Given = std::vector<std::string>;
using dtrain::testing::Names;

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
}  // namespace slurm_test
