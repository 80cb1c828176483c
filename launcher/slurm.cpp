#include "launcher/slurm.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/net/slurm_address.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::SlurmStep;

int default_num_ranks(const SlurmStep& step) {
  if (step.gpus > 0) return static_cast<int>(step.gpus);
  // Without a plugin that binds tasks to cores, SLURM's number alone says which part is theirs.
  const std::int64_t usable = dtrain::base::usable_cores();
  return static_cast<int>(step.cores > 0 ? std::min(step.cores, usable) : 1);
}

}  // namespace

void take_from_slurm(const SlurmStep& step, Options& options, std::vector<std::string>& given) {
  const auto is_given = [&](std::string_view name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  const auto fill = [&](std::string_view name, auto& field, const auto& value) {
    if (is_given(name)) return;
    field = value();
    given.emplace_back(name);
  };
  for (const std::string_view name : {"--nnodes", "--standalone", "--emulate-nodes"}) {
    if (is_given(name)) return;
  }
  if (step.num_tasks != step.num_nodes) {
    dtrain::base::fail(ErrorKind::usage,
                       "srun started {} dtruns on {} node{}; give it --ntasks-per-node=1, since "
                       "dtrun starts the ranks of a node, or dtrun --standalone for jobs of their "
                       "own",
                       step.num_tasks, step.num_nodes, step.num_nodes == 1 ? "" : "s");
  }
  fill("--nproc-per-node", options.num_ranks, [&] { return default_num_ranks(step); });
  if (step.num_nodes == 1) return;
  options.follows_slurm = true;
  fill("--nnodes", options.num_nodes, [&] { return static_cast<int>(step.num_nodes); });
  fill("--node-rank", options.node_rank, [&] { return static_cast<int>(step.node); });
  fill("--master-addr", options.master_addr,
       [&] { return dtrain::net::address_of_first_node(step); });
  fill("--master-port", options.master_port,
       [&] { return static_cast<int>(dtrain::base::port_of(step)); });
}

}  // namespace launcher
