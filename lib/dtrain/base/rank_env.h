// Reads the environment variables: this process's rank, and how it was launched. No other file of
// dtrain reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/base/host/slurm_step.h"

namespace dtrain::base {

/// The sockets that dtrun provides to its ranks for reaching rank 0's store; unset in ranks that
/// dtrun did not start.
struct StoreSockets {
  /// One node: this rank's end of dtrun's rendezvous socket, a pair of unix sockets
  /// (DTRUN_STORE_FD); -1: the rendezvous uses TCP.
  int rendezvous_fd = -1;
  /// Several nodes: the port on which node 0's dtrun listens (DTRUN_STORE_PORT); 0: rank 0 opens
  /// its own listening socket.
  std::int64_t port = 0;
  /// On rank 0: the listening socket of that port (DTRUN_STORE_LISTENER_FD); -1: none.
  int listener_fd = -1;
};

/// How this process reaches rank 0's store.
struct RendezvousEnv {
  std::string master_addr;       ///< address of the store; empty: not set
  std::int64_t master_port = 0;  ///< 0: not set
  StoreSockets store;            ///< dtrun's sockets to the store

  /// Under torchrun, whose store occupies master_addr:master_port (TORCHELASTIC_USE_AGENT_STORE):
  /// this attempt's key in torchrun's store. Empty: rank 0 may listen there
  std::string agent_store_key;

  std::string job_token;       ///< the job's secret, for a rendezvous over TCP (DTRAIN_JOB_TOKEN)
  std::string job_token_file;  ///< a file that contains the secret (DTRAIN_JOB_TOKEN_FILE)

  /// The store's port at master_addr, for ranks without dtrun's rendezvous socket: dtrun's port if
  /// set, otherwise master_port.
  [[nodiscard]] std::int64_t store_port() const {
    return store.port > 0 ? store.port : master_port;
  }
};

/// This process's rank and how it was launched. Without a launcher: rank 0 of 1.
struct RankEnv {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;        ///< among the ranks of this machine
  std::int64_t local_world_size = 1;  ///< ranks of this machine
  std::int64_t node_rank = 0;
  std::int64_t num_nodes = 1;  ///< 0: unknown
  std::string source;  ///< the variable that set the rank: "RANK", "SLURM_PROCID", ...; empty: none

  RendezvousEnv rendezvous;
  int control_fd = -1;          ///< connection to dtrun (DTRUN_CONTROL_FD)
  std::string gloo_interfaces;  ///< gloo's interfaces, comma-separated (GLOO_SOCKET_IFNAME)

  /// OMP_NUM_THREADS, or SLURM's CPUs for a task, at most the usable cores; 0: neither is set
  std::int64_t threads_hint = 0;
  std::int64_t terminal_columns =
      0;                           ///< COLUMNS, as dtrun sets it; 0: not under dtrun on a terminal
  bool launcher_terminal = false;  ///< dtrun shows rank 0's progress line on a terminal
  bool in_slurm = false;           ///< within a SLURM job
  std::optional<SlurmStep> slurm_step;  ///< set if SLURM itself started the ranks
  /// For a command typed in an `srun --pty` shell, which is a separate job: the number of tasks of
  /// that shell's step; otherwise 0
  std::int64_t tasks_of_shell = 0;

  std::string launch;              ///< the launcher's id of this launch; empty: none
  std::int64_t restart_count = 0;  ///< how often the launcher has restarted the job
  std::int64_t max_restarts = 0;   ///< the limit of restart_count
  std::string restart_reason;      ///< how the previous attempt ended, as dtrun reports it
};

/// Looks up a variable; empty if it is unset or empty.
using EnvLookup = std::function<std::optional<std::string>(const char* name)>;

/// Reads the rank from the first of these that is set (docs/guide/configuration.md): RANK,
/// WORLD_SIZE and LOCAL_RANK; OMPI_COMM_WORLD_*; PMI_*, except those that srun --mpi=pmi2 sets;
/// inside a SLURM step, SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID. A command typed in a shell of
/// `srun --pty` is rank 0 of 1, regardless of the step's number of tasks, because the other tasks
/// have no terminal.
///
/// Throws: Error{usage} naming the variable that is missing or invalid, or the two sources that
///         disagree.
[[nodiscard]] RankEnv read_rank_env(const EnvLookup& lookup);

/// The SLURM step of which this process is a task; empty outside a step, as in a batch script, and
/// in ranks that dtrun or torchrun started. In a shell of `srun --pty` the step consists of this
/// node alone.
///
/// Throws: Error{usage} naming the variable that is missing or invalid.
[[nodiscard]] std::optional<SlurmStep> read_slurm_step(const EnvLookup& lookup);
/// The same for this process.
[[nodiscard]] std::optional<SlurmStep> slurm_step_of_process();

/// read_rank_env for this process's environment.
[[nodiscard]] RankEnv rank_env_of_process();

/// The file in which the launcher expects this process's error (TORCHELASTIC_ERROR_FILE); empty:
/// none.
[[nodiscard]] std::string error_file_of_process();

/// Returns whether this is a restart after a failed attempt (TORCHELASTIC_RESTART_COUNT).
[[nodiscard]] bool is_restart_of_process();

/// The last committed step of the named run that earlier attempts reported to dtrun
/// (DTRUN_COMMITTED, "RUN=STEP RUN=STEP"); -1: none.
[[nodiscard]] std::int64_t committed_step_of_process(std::string_view run);

/// The variables that restrict the instruction sets of math libraries, if set:
/// "ONEDNN_MAX_CPU_ISA=AVX2 ..."; empty: none.
[[nodiscard]] std::string cpu_settings_of_process();

/// Limits how long this process's OpenMP threads spin between parallel regions before they sleep,
/// unless GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. OpenMP reads the limit when it is loaded.
void limit_openmp_spinning();

/// Raises the number of a GPU's hardware queues from 8 to 32, so that streams do not block each
/// other in a shared queue (docs/guide/devices.md), unless CUDA_DEVICE_MAX_CONNECTIONS is set. CUDA
/// reads it at its first call.
///
/// Threads: one, before others may read the environment.
void set_cuda_hardware_queues();

/// Makes CUDA load every kernel eagerly instead of at its first launch, unless CUDA_MODULE_LOADING
/// is set. Lazy loading synchronises with the GPU, which would deadlock during a receive if its
/// sender waits for this rank (docs/guide/devices.md). CUDA reads it at its first call.
///
/// Threads: one, before others may read the environment.
void disable_lazy_kernel_loading();

/// Selects NCCL's network interface, unless NCCL_SOCKET_IFNAME is set. NCCL reads it when its first
/// communicator is created.
void set_nccl_interface(const std::string& name);

/// Counts the visible GPUs among `present` ones. listed: the value of CUDA_VISIBLE_DEVICES, or null
/// if it is unset; CUDA reads it up to the first invalid entry.
[[nodiscard]] std::int64_t visible_gpus(const char* listed, std::int64_t present);
/// The same for this process.
[[nodiscard]] std::int64_t visible_gpus_of_process(std::int64_t present);

/// The number of cores that the affinity mask and the control groups' quota allow this process; at
/// least 1.
[[nodiscard]] std::int64_t usable_cores();

}  // namespace dtrain::base
