// A rank without LibTorch, for jobs of many ranks: performs the rendezvous, shares memory, creates
// two groups (control, data), all-reduces a number over each and reports a step to dtrun, with
// dtrain's own code. For one machine, which may emulate several nodes.
//   rank_stub [SECONDS]   sleeps that long before it exits
#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/comm/internal/host/host_groups.h"
#include "dtrain/comm/internal/host/host_topology.h"
#include "dtrain/comm/internal/host/shm_barrier.h"
#include "dtrain/comm/internal/host/shm_context.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"
#include "dtrain/comm/tree_order.h"
#include "dtrain/net/proof.h"

namespace {

using namespace dtrain;

constexpr std::chrono::milliseconds kTimeout(60'000);

std::int64_t open_files() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  std::int64_t count = -3;  // ".", ".." and the folder itself
  while (::readdir(folder.get()) != nullptr) ++count;
  return count;
}

std::shared_ptr<comm::Rendezvous> meet(const base::RankEnv& env) {
  const base::RendezvousEnv& rendezvous = env.rendezvous;
  return comm::join_rendezvous(
      {.rank = env.rank,
       .size = env.world_size,
       .store = rendezvous.store,
       .master_addr = rendezvous.master_addr,
       .master_port = rendezvous.store_port(),
       .token = rendezvous.store.rendezvous_fd < 0
                    ? net::job_secret(rendezvous.job_token, rendezvous.job_token_file)
                    : "",
       .is_one_host = env.num_nodes == 1},
      base::Deadline(kTimeout));
}

std::shared_ptr<comm::ProcessPeerMemory> peer_memory_of(const base::RankEnv& env,
                                                        comm::Rendezvous& rendezvous) {
  const base::Deadline deadline(kTimeout);
  auto topology = comm::discover_hosts(
      {.rank = env.rank, .size = env.world_size, .count_memory = {}}, *rendezvous.store, deadline);
  if (!topology.obstacle.empty() || topology.num_hosts() != 1) {
    base::fail(base::ErrorKind::comm, "{} hosts, not one: {}", topology.num_hosts(),
               topology.obstacle);
  }
  return comm::share_memory(std::move(topology), deadline);
}

/// Reduces as a small tensor is reduced, in the group's first call.
double all_reduce(comm::ShmContext& group, double value) {
  comm::ShmBarrier barrier(group);
  barrier.exchange({.op = comm::Collective::all_reduce, .count = 1},
                   reinterpret_cast<const std::byte*>(&value), sizeof value,
                   base::Deadline(kTimeout));
  std::vector<double> sums;
  const auto payloads = barrier.payloads(0);
  for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
    const auto step = comm::tree_step(static_cast<std::int64_t>(rank), std::ssize(payloads));
    const double term = *reinterpret_cast<const double*>(payloads[rank]);
    if (step.starts_slot) {
      sums.push_back(term);
    } else {
      sums.back() += term;
    }
    for (int merge = 0; merge < step.merges; ++merge) {
      const double top = sums.back();
      sums.pop_back();
      sums.back() += top;
    }
  }
  return sums.front();
}

void run(double seconds) {
  const base::RankEnv env = base::rank_env_of_process();
  base::LauncherLink launcher(env.control_fd);
  const auto rendezvous = meet(env);
  const auto peer_memory = peer_memory_of(env, *rendezvous);
  comm::HostGroups groups(kTimeout, rendezvous, peer_memory);
  std::vector<std::int64_t> all(static_cast<std::size_t>(env.world_size));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  const auto n = static_cast<double>(env.world_size);
  std::vector<std::unique_ptr<comm::ShmContext>> contexts;
  for (const std::string name : {"control", "dp"}) {
    const comm::GroupPlan plan{
        .key = "group " + name, .name = name, .rank = env.rank, .world_ranks = all};
    contexts.push_back(std::make_unique<comm::ShmContext>(groups.join(plan), peer_memory));
    const double sum = all_reduce(*contexts.back(), static_cast<double>(env.rank + 1));
    if (sum != n * (n + 1) / 2) base::fail(base::ErrorKind::internal, "the sum is {}", sum);
  }
  rendezvous->store->leave();
  if (rendezvous->server) rendezvous->server->finish();
  launcher.progress(1, 0);
  if (env.rank == 0 || env.rank == env.world_size - 1) {
    std::puts(fmt::format("rank {}: {} open files, {} bytes for the group", env.rank, open_files(),
                          comm::ControlBlock::common_bytes_for(env.world_size))
                  .c_str());
    std::fflush(stdout);
  }
  std::this_thread::sleep_for(base::Seconds(seconds));
}

}  // namespace

int main(int argc, char** argv) {
  base::raise_open_file_limit();
  try {
    run(argc > 1 ? std::atof(argv[1]) : 0);
    return 0;
  } catch (const base::Error& error) {
    const auto status = static_cast<int>(error.kind());
    if (!base::send_error_to_launcher(status, error.what(), base::ErrorScope::own))
      std::puts(error.what());
    return status;
  }
}
