#include "dtrain/base/rank_env.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/available_resources.h"
#include "dtrain/base/host/cpu_list.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"

namespace dtrain::base {
namespace {

constexpr std::int64_t kMaxRanks = 1 << 20;
constexpr std::int64_t kMaxPort = 65535;

/// The variables of one launcher.
struct Source {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* node_rank;
  const char* num_nodes;
};

constexpr Source kTorch = {"RANK",       "WORLD_SIZE",      "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                           "GROUP_RANK", "GROUP_WORLD_SIZE"};
constexpr Source kOpenMpi = {"OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             nullptr,
                             "OMPI_MCA_orte_num_nodes"};
constexpr Source kPmi = {"PMI_RANK",        "PMI_SIZE", "MPI_LOCALRANKID",
                         "MPI_LOCALNRANKS", nullptr,    nullptr};

class Reader {
 public:
  explicit Reader(const EnvLookup& lookup) : lookup_(lookup) {}

  [[nodiscard]] bool has(const char* name) const { return lookup_(name).has_value(); }
  [[nodiscard]] std::string text(const char* name) const { return lookup_(name).value_or(""); }
  [[nodiscard]] const char* first_of(const char* name, const char* other) const {
    return has(name) ? name : other;
  }

  [[nodiscard]] std::optional<std::int64_t> number(const char* name, std::int64_t lowest,
                                                   std::int64_t highest) const {
    const std::optional<std::string> text = name == nullptr ? std::nullopt : lookup_(name);
    if (!text) return std::nullopt;
    const auto value = number_in<std::int64_t>(*text);
    if (!value || *value < lowest || *value > highest) {
      fail(ErrorKind::usage,
           "environment variable {}: found \"{}\", but it must be a whole number from {} to {}",
           name, *text, lowest, highest);
    }
    return value;
  }

 private:
  const EnvLookup& lookup_;
};

// Reads one launcher's variables; returns nothing if it did not start this process.
std::optional<RankEnv> read_source(const Reader& reader, const Source& names) {
  const auto rank = reader.number(names.rank, 0, kMaxRanks);
  const auto world_size = reader.number(names.world_size, 1, kMaxRanks);
  if (!rank && !world_size) return std::nullopt;
  if (!rank || !world_size) {
    const char* const set = rank ? names.rank : names.world_size;
    fail(ErrorKind::usage,
         "environment variable {} is set but {} is not: launch with dtrun, or unset {} for one "
         "process",
         set, rank ? names.world_size : names.rank, set);
  }
  if (*rank >= *world_size) {
    fail(ErrorKind::usage, "environment variables: {} {} must be below {} {}", names.rank, *rank,
         names.world_size, *world_size);
  }
  RankEnv env;
  env.source = names.rank;
  env.rank = *rank;
  env.world_size = *world_size;
  const auto local_rank = reader.number(names.local_rank, 0, kMaxRanks);
  const auto local_size = reader.number(names.local_world_size, 1, kMaxRanks);
  env.local_rank = local_rank.value_or(0);
  env.local_world_size = local_size.value_or(1);
  if (local_rank && local_size && (*local_rank >= *local_size || *local_size > *world_size)) {
    fail(ErrorKind::usage,
         "environment variables: {} {}, {} {} and {} {} contradict each other; launch with dtrun, "
         "or correct them",
         names.local_rank, *local_rank, names.local_world_size, *local_size, names.world_size,
         *world_size);
  }
  env.node_rank = reader.number(names.node_rank, 0, kMaxRanks).value_or(0);
  const std::int64_t by_size =
      local_size ? (*world_size + *local_size - 1) / *local_size : std::int64_t{*world_size == 1};
  env.num_nodes = reader.number(names.num_nodes, 1, kMaxRanks).value_or(by_size);
  return env;
}

/// Returns whether this command was typed in an interactive shell that is a task of `srun --pty`:
/// shells start such a command in its own process group, scripts do not.
bool is_typed_in_task(const Reader& reader) {
  constexpr std::int64_t kMaxPid = std::numeric_limits<pid_t>::max();
  if (!reader.has("SLURM_PTY_PORT")) return false;
  const auto task = reader.number("SLURM_TASK_PID", 1, kMaxPid);
  if (!task) return false;
  const pid_t group = ::getpgid(static_cast<pid_t>(*task));
  return group > 0 && group != ::getpgrp();
}

/// A single-rank job, for a command typed in a shell of a step.
RankEnv alone_in_step(const RankEnv& task) {
  RankEnv env;
  env.source = task.source;
  env.tasks_of_shell = task.world_size;
  return env;
}

/// Prefers the variables of the SLURM step over those of the job, which a batch script has too.
std::optional<RankEnv> read_slurm(const Reader& reader) {
  if (!reader.has("SLURM_STEP_ID") || !reader.has("SLURM_PROCID")) return std::nullopt;
  const Source names = {"SLURM_PROCID",  reader.first_of("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
                        "SLURM_LOCALID", nullptr,
                        "SLURM_NODEID",  reader.first_of("SLURM_STEP_NUM_NODES", "SLURM_NNODES")};
  std::optional<RankEnv> env = read_source(reader, names);
  if (env && is_typed_in_task(reader)) return alone_in_step(*env);
  if (env && env->num_nodes > 0) {
    env->local_world_size = (env->world_size + env->num_nodes - 1) / env->num_nodes;
  }
  return env;
}

SlurmStep step_of(const Reader& reader, const RankEnv& env) {
  constexpr std::int64_t kMaxId = std::int64_t{1} << 32;
  const char* const hosts = reader.first_of("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  const char* const cores = reader.first_of("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE");
  SlurmStep step{.job_id = reader.number("SLURM_JOB_ID", 0, kMaxId).value_or(0),
                 .step_id = reader.number("SLURM_STEP_ID", 0, kMaxId).value_or(0),
                 .num_tasks = env.world_size,
                 .num_nodes = env.num_nodes,
                 .node = env.node_rank,
                 .hosts = reader.text(hosts),
                 .gpus = reader.number("SLURM_GPUS_ON_NODE", 0, kMaxRanks).value_or(0),
                 .cores = reader.number(cores, 0, kMaxRanks).value_or(0)};
  // Other programs of this machine may use these names in their own way.
  if (step.num_tasks == 1) return step;
  step.master_addr = reader.text("MASTER_ADDR");
  step.master_port = reader.number("MASTER_PORT", 1, kMaxPort).value_or(0);
  return step;
}

/// Sets what srun does not provide: the rendezvous address, and a rank's threads.
void complete_from_step(const Reader& reader, RankEnv& env) {
  env.slurm_step = step_of(reader, env);
  // If tasks are bound to cores, the usable cores are this task's alone.
  if (env.threads_hint == 0 && reader.has("SLURM_CPUS_PER_TASK")) {
    env.threads_hint = std::min(env.slurm_step->cores, usable_cores());
  }
  if (env.world_size == 1) return;
  RendezvousEnv& rendezvous = env.rendezvous;
  rendezvous.master_port = port_of(*env.slurm_step);
  if (rendezvous.master_addr.empty() && env.num_nodes == 1) rendezvous.master_addr = "127.0.0.1";
}

/// mpirun provides no rendezvous address; ranks of one machine derive a port from its job id, which
/// is the same for all (16 bits for mpirun itself and 16 for the job that it starts).
void complete_from_mpirun(const Reader& reader, RankEnv& env) {
  constexpr std::int64_t kMaxId = std::int64_t{1} << 32;
  const auto job = reader.number("OMPI_MCA_ess_base_jobid", 0, kMaxId);
  RendezvousEnv& rendezvous = env.rendezvous;
  if (!job || env.world_size == 1 || env.num_nodes != 1 || rendezvous.master_port != 0) return;
  rendezvous.master_port = port_of(SlurmStep{.job_id = *job >> 16, .step_id = *job & 0xFFFF});
  if (rendezvous.master_addr.empty()) rendezvous.master_addr = "127.0.0.1";
}

void require_agreement(const RankEnv& a, const RankEnv& b) {
  if (a.rank == b.rank && a.world_size == b.world_size) return;
  fail(ErrorKind::usage,
       "environment: {} says rank {} of {}, but {} says rank {} of {}: unset the one that is stale",
       a.source, a.rank, a.world_size, b.source, b.rank, b.world_size);
}

// Detects PMI variables set by srun --mpi=pmi2: then the step's own variables take precedence,
// since they include the rendezvous address and local rank. MPI launchers set the local rank as
// well.
bool is_of_srun(const RankEnv& env, const Reader& reader, const std::optional<RankEnv>& slurm) {
  return slurm && env.source == kPmi.rank && !reader.has(kPmi.local_world_size) &&
         env.rank == slurm->rank &&
         env.world_size == std::max(slurm->world_size, slurm->tasks_of_shell);
}

RankEnv read_rank(const Reader& reader) {
  const std::optional<RankEnv> torch = read_source(reader, kTorch);
  // A launcher may itself be a SLURM or MPI task; those variables then describe the launcher.
  if (torch && (reader.has("TORCHELASTIC_RUN_ID") || reader.has("DTRUN_CONTROL_FD"))) return *torch;

  const std::optional<RankEnv> slurm = read_slurm(reader);
  const bool tasks_are_launchers = slurm && slurm->world_size == slurm->num_nodes;
  std::vector<RankEnv> found;
  if (torch) found.push_back(*torch);
  for (const Source& source : {kOpenMpi, kPmi}) {
    const auto env = read_source(reader, source);
    if (env && !is_of_srun(*env, reader, slurm)) found.push_back(*env);
  }
  // mpirun in a SLURM job starts one daemon per node as a step; the ranks inherit its variables.
  const bool only_mpi = !found.empty() && !torch;
  if (slurm && !(only_mpi && tasks_are_launchers)) found.push_back(*slurm);
  for (std::size_t i = 1; i < found.size(); ++i) require_agreement(found[0], found[i]);
  return found.empty() ? RankEnv{} : found[0];
}

// OMP_NUM_THREADS may be a list with one number per nesting level; the first is used.
std::int64_t read_threads(const Reader& reader) {
  const std::string text = reader.text("OMP_NUM_THREADS");
  const std::string first = text.substr(0, text.find(','));
  const EnvLookup first_only = [&](const char*) {
    return first.empty() ? std::nullopt : std::optional<std::string>(first);
  };
  return Reader(first_only).number("OMP_NUM_THREADS", 1, 1 << 12).value_or(0);
}

std::optional<std::string> value_in_process(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int read_descriptor(const Reader& reader, const char* name) {
  return static_cast<int>(reader.number(name, 0, std::numeric_limits<int>::max()).value_or(-1));
}

/// Returns whether MASTER_ADDR and MASTER_PORT are dtrun's: a torchrun or a script inside one of
/// its ranks may set others for its own ranks, which inherit dtrun's variables.
bool meets_where_dtrun_says(const Reader& reader) {
  const std::string master = reader.text("MASTER_ADDR") + ":" + reader.text("MASTER_PORT");
  return reader.text("DTRUN_MASTER") == master;
}

RendezvousEnv read_rendezvous(const Reader& reader, const RankEnv& env) {
  RendezvousEnv rendezvous;
  rendezvous.master_addr = reader.text("MASTER_ADDR");
  // Other programs of this machine may use the name in their own way.
  if (env.world_size > 1) {
    rendezvous.master_port = reader.number("MASTER_PORT", 1, kMaxPort).value_or(0);
  }
  if (env.source == kTorch.rank && reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    rendezvous.agent_store_key = "dtrain/" + reader.text("TORCHELASTIC_RESTART_COUNT");
  } else if (meets_where_dtrun_says(reader)) {
    rendezvous.store = {.rendezvous_fd = read_descriptor(reader, "DTRUN_STORE_FD"),
                        .port = reader.number("DTRUN_STORE_PORT", 1, kMaxPort).value_or(0),
                        .listener_fd = read_descriptor(reader, "DTRUN_STORE_LISTENER_FD")};
  }
  rendezvous.job_token = reader.text("DTRAIN_JOB_TOKEN");
  rendezvous.job_token_file = reader.text("DTRAIN_JOB_TOKEN_FILE");
  return rendezvous;
}

void read_restart(const Reader& reader, RankEnv& env) {
  constexpr std::int64_t kMaxRestarts = 1 << 30;
  env.launch = reader.text("TORCHELASTIC_RUN_ID");
  if (env.launch == "none") env.launch.clear();  // torchrun's default without --rdzv-id
  env.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0, kMaxRestarts).value_or(0);
  env.max_restarts = reader.number("TORCHELASTIC_MAX_RESTARTS", 0, kMaxRestarts).value_or(0);
  env.restart_reason = reader.text("DTRUN_RESTART_REASON");
}

}  // namespace

RankEnv read_rank_env(const EnvLookup& lookup) {
  const Reader reader(lookup);
  RankEnv env = read_rank(reader);
  env.rendezvous = read_rendezvous(reader, env);
  env.gloo_interfaces = reader.text("GLOO_SOCKET_IFNAME");
  env.control_fd = read_descriptor(reader, "DTRUN_CONTROL_FD");
  env.threads_hint = read_threads(reader);
  env.launcher_terminal = reader.text("DTRUN_TERMINAL") == "1";
  if (env.launcher_terminal) {
    env.terminal_columns = reader.number("COLUMNS", 0, 1 << 16).value_or(0);
  }
  env.in_slurm = reader.has("SLURM_JOB_ID");
  read_restart(reader, env);
  if (env.source == "SLURM_PROCID") complete_from_step(reader, env);
  if (env.source == kOpenMpi.rank) complete_from_mpirun(reader, env);
  return env;
}

std::optional<SlurmStep> read_slurm_step(const EnvLookup& lookup) {
  const Reader reader(lookup);
  // Within a rank that another launcher started, SLURM's variables are that launcher's.
  if (reader.has("TORCHELASTIC_RUN_ID") || reader.has("DTRUN_CONTROL_FD")) return std::nullopt;
  const std::optional<RankEnv> env = read_slurm(reader);
  if (!env) return std::nullopt;
  return step_of(reader, *env);
}

RankEnv rank_env_of_process() { return read_rank_env(value_in_process); }

std::optional<SlurmStep> slurm_step_of_process() { return read_slurm_step(value_in_process); }

std::string error_file_of_process() {
  return value_in_process("TORCHELASTIC_ERROR_FILE").value_or("");
}

bool is_restart_of_process() {
  const std::string count = value_in_process("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return number_in<std::int64_t>(count).value_or(0) > 0;
}

std::int64_t committed_step_of_process(std::string_view run) {
  const std::string all = value_in_process("DTRUN_COMMITTED").value_or("");
  for (const std::string_view entry : split(all, ' ')) {
    const std::size_t end = entry.rfind('=');
    if (end == entry.npos || entry.substr(0, end) != run) continue;
    return number_in<std::int64_t>(entry.substr(end + 1)).value_or(-1);
  }
  return -1;
}

std::string cpu_settings_of_process() {
  std::string settings;
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS",
                           "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "GLIBC_TUNABLES"}) {
    const std::string value = value_in_process(name).value_or("");
    // Only tunables of CPU features change rounding.
    const bool is_tunable = std::string_view(name) == "GLIBC_TUNABLES";
    if (value.empty() || (is_tunable && value.find("hwcaps") == std::string::npos)) continue;
    settings += fmt::format("{}{}={}", settings.empty() ? "" : " ", name, value);
  }
  return settings;
}

void limit_openmp_spinning() {
  // 10 to 150 us, depending on the CPU's pause instruction: longer than the gaps between parallel
  // regions of a step, and far shorter than the milliseconds for which spinning threads of two
  // programs delay each other.
  constexpr const char* kTurns = "4000";
  if (std::getenv("OMP_WAIT_POLICY") == nullptr)
    ::setenv("GOMP_SPINCOUNT", kTurns, /*overwrite=*/0);
}

void set_cuda_hardware_queues() {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // CUDA's maximum
}

void disable_lazy_kernel_loading() { ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0); }

void set_nccl_interface(const std::string& name) {
  if (value_in_process("NCCL_SOCKET_IFNAME")) return;
  // NCCL takes a name without "=" as a prefix.
  ::setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), /*overwrite=*/1);
}

std::int64_t visible_gpus(const char* listed, std::int64_t present) {
  if (listed == nullptr) return present;
  std::int64_t visible = 0;
  for (const std::string_view entry : split(listed, ',')) {
    const bool has_uuid = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    const auto index = number_in<std::int64_t>(entry);
    const bool is_shown = has_uuid || (index && *index >= 0 && *index < present);
    if (visible == present || !is_shown) break;
    ++visible;
  }
  return visible;
}

std::int64_t visible_gpus_of_process(std::int64_t present) {
  return visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), present);
}

std::int64_t usable_cores() {
  const auto allowed = std::max<std::int64_t>(1, std::ssize(affinity_mask()));
  return std::min(allowed, cpu_quota().value_or(allowed));
}

}  // namespace dtrain::base
