// dtrain doctor: diagnoses the environment of a job.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/checksum.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/doctor/internal/checks.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/job/job.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/job/ranks.h"
#include "dtrain/job/start_table.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::commands {
namespace {

using doctor::Findings;

std::string rendezvous_address(const config::Config& config, const base::RankEnv& env) {
  using config::Backend;
  const Backend backend = config.machine.backend;
  if (backend == Backend::none || backend == Backend::local) return "in one process";
  if (backend == Backend::mpi) return "through MPI";
  const base::RendezvousEnv& rendezvous = env.rendezvous;
  if (rendezvous.store.rendezvous_fd >= 0) return "through dtrun's sockets, which need no port";
  const std::string addr = job::rendezvous_addr(env);
  if (rendezvous.agent_store_key.empty()) {
    return fmt::format("at {} port {}", addr, rendezvous.store_port());
  }
  return fmt::format("at a port of rank 0, published in torchrun's store at {} port {}", addr,
                     rendezvous.master_port);
}

void report_rendezvous(const comm::World& world, const config::Config& config,
                       const base::RankEnv& env, double seconds, Findings& findings) {
  findings.fact("ranks", fmt::format("{}, {}", world.size(),
                                     env.source.empty() ? "no launcher" : "by " + env.source));
  findings.fact("rendezvous",
                fmt::format("{}, in {:.3f} s; backend {}", rendezvous_address(config, env), seconds,
                            job::backend_text(config, world)));
}

// Returns true if all ranks have the same configuration.
bool check_configuration(comm::ProcessGroup& world, const config::Config& config,
                         Findings& findings) {
  const auto values = job::agreed_settings(config);
  try {
    comm::check_agreement(world, values);
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    findings.problem(error);
    return false;
  }
  std::string text;
  for (const auto& [key, value] : values) text += fmt::format("{}={}\n", key, value);
  findings.fact("configuration",
                fmt::format("hash {:016x}, equal on all ranks", base::hash_text(text)));
  return true;
}

// Checks whether the job would be refused for its predicted memory, with the smallest microbatch if
// the microbatch is automatic.
void check_needed_memory(comm::ProcessGroup& world, const config::Config& config,
                         const config::StartRecord& record, Findings& findings) {
  config::Config job = config;
  if (record.requested && config::is_microbatch_automatic(record.requested->batch)) {
    const auto possible = config::microbatch_candidates(job, job.batch.microbatch);
    if (!possible.empty()) config::set_microbatch(job, possible.back());
  }
  std::optional<parallel::MemoryPlan> predicted;
  std::string obstacle;
  comm::run_long(world, "predicting the memory of the job", [&] {
    try {
      const mesh::DeviceMesh mesh(config::mesh_of(job.layout));
      predicted = parallel::rank_plan(job, mesh.coordinate(world.rank())).memory;
    } catch (const base::Error& error) {
      obstacle = error.what();
    }
  });
  for (const std::string& text : comm::exchange_texts(world, obstacle)) {
    if (!text.empty()) return findings.problem(base::ErrorKind::usage, text);
  }
  findings.fact("memory needed",
                fmt::format("{} predicted per rank", metrics::format_bytes(predicted->peak())));
  try {
    job::check_machine_memory(job, world, *predicted);
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    findings.problem(error);
  }
}

void examine(const config::Config& config, const config::StartRecord& record,
             const base::RankEnv& env, const job::JoinWorld& join, const Output& output) {
  const base::LauncherLink link(env.control_fd);
  const auto begin = base::Clock::now();
  const std::shared_ptr<comm::World> world = join();
  const double seconds = base::seconds_since(begin);
  if (world->rank() == 0) base::request_plain_output();
  Findings findings(world->rank() == 0 ? output : [](std::string_view) {});
  report_rendezvous(*world, config, env, seconds, findings);
  doctor::report_machines(*world, config, record, findings);
  if (check_configuration(world->control(), config, findings)) {
    check_needed_memory(world->control(), config, record, findings);
  }
  doctor::check_run_folder(world->control(), config.run.dir, findings);
  doctor::measure_clocks(*world, findings);
  doctor::measure_all_reduce(*world, findings);
  world->control().barrier();
  findings.require_none();
  findings.fact("result", "no problem found");
}

}  // namespace

void run_doctor(const config::Config& config, const config::StartRecord& record,
                const Output& output) {
  (void)job::run_ranks(config, [&](const base::RankEnv& env, const job::JoinWorld& join) {
    examine(config, record, env, join, output);
    return 0;
  });
}

}  // namespace dtrain::commands
