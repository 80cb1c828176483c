// The one place where environment variables are read: which rank this process is, and how it was
// launched.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/base/host/slurm_step.h"

namespace dtrain::base {

/// The sockets of dtrun through which its ranks reach the store that rank 0 serves, as its
/// environment variables name them; unset in ranks that dtrun did not start.
struct StoreSockets {
  /// One node: this rank's end of dtrun's rendezvous socket, a pair of unix sockets
  /// (DTRUN_STORE_FD); -1: ranks meet over TCP.
  int rendezvous_fd = -1;
  /// Several nodes: where node 0's dtrun listens (DTRUN_STORE_PORT); 0: rank 0 listens by itself.
  std::int64_t port = 0;
  /// Of rank 0: the socket that listens there (DTRUN_STORE_LISTENER_FD); -1: none.
  int listener_fd = -1;
};

/// This process within its job. A process that nobody launched is rank 0 of 1.
struct RankEnv {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;        ///< among the ranks of this machine
  std::int64_t local_world_size = 1;  ///< ranks of this machine
  std::int64_t node_rank = 0;
  std::int64_t num_nodes = 1;  ///< 0: the launcher did not say
  std::string source;          ///< what set them: "RANK", "SLURM_PROCID", ...; empty: nobody

  std::string master_addr;       ///< where rank 0's store listens; empty: not set
  std::int64_t master_port = 0;  ///< 0: not set
  StoreSockets store;            ///< dtrun's ways to rank 0's store
  int control_fd = -1;           ///< line to dtrun (DTRUN_CONTROL_FD)

  /// Under torchrun, which serves a store of its own at master_addr:master_port
  /// (TORCHELASTIC_USE_AGENT_STORE): a key in it for this attempt; empty: rank 0 may listen there
  std::string agent_store_key;

  std::string job_token;       ///< the secret of a job that meets over TCP (DTRAIN_JOB_TOKEN)
  std::string job_token_file;  ///< a file that holds it (DTRAIN_JOB_TOKEN_FILE)

  std::string gloo_interfaces;  ///< where gloo listens, separated by commas (GLOO_SOCKET_IFNAME)

  /// OMP_NUM_THREADS, or SLURM's CPUs for a task, at most the usable cores; 0: neither is set
  std::int64_t threads_hint = 0;
  std::int64_t terminal_columns =
      0;                           ///< COLUMNS, as dtrun sets it; 0: not under dtrun on a terminal
  bool launcher_terminal = false;  ///< dtrun shows rank 0's progress line on a terminal
  bool in_slurm = false;           ///< within a SLURM job
  std::optional<SlurmStep> slurm_step;  ///< where SLURM alone started the ranks
  /// Tasks of the step in whose `srun --pty` shell somebody typed this command, which is a job of
  /// its own; 0: it is none
  std::int64_t tasks_of_shell = 0;

  std::string launch;              ///< the launcher's name for this launch; empty: it gives none
  std::int64_t restart_count = 0;  ///< times that the launcher has started the job again
  std::int64_t max_restarts = 0;   ///< how often it may
  std::string restart_reason;      ///< how the attempt before this one ended, as dtrun tells it

  /// The port of master_addr where ranks reach rank 0's store, unless they have dtrun's rendezvous
  /// socket: dtrun's, else master_port.
  [[nodiscard]] std::int64_t store_port() const {
    return store.port > 0 ? store.port : master_port;
  }
};

/// The value of a variable, if it is set and not empty.
using EnvLookup = std::function<std::optional<std::string>(const char* name)>;

/// Finds the rank in RANK, WORLD_SIZE and LOCAL_RANK; else OMPI_COMM_WORLD_*; else PMI_*, except
/// what srun --mpi=pmi2 sets; else, inside a SLURM step, SLURM_PROCID, SLURM_NTASKS and
/// SLURM_LOCALID (docs/guide/configuration.md). A command that was typed in a shell of `srun --pty` is
/// rank 0 of 1, however many tasks the step has: the others have no terminal, and nobody types
/// there.
///
/// Throws: Error{usage} naming the variable that is missing or holds no sensible number, or the two
///         sources that disagree.
[[nodiscard]] RankEnv read_rank_env(const EnvLookup& lookup);

/// The SLURM step that this process is a task of; nothing outside of one, as in a batch script, and
/// in a rank that dtrun or torchrun started. In a shell of `srun --pty` this node is the whole
/// step.
///
/// Throws: Error{usage} naming the variable that is missing or holds no sensible number.
[[nodiscard]] std::optional<SlurmStep> read_slurm_step(const EnvLookup& lookup);
/// The same for this process.
[[nodiscard]] std::optional<SlurmStep> slurm_step_of_process();

/// read_rank_env of this process's environment.
[[nodiscard]] RankEnv rank_env_of_process();

/// Where a launcher looks for the reason of this process's failure (TORCHELASTIC_ERROR_FILE);
/// empty: nowhere.
[[nodiscard]] std::string error_file_of_process();

/// Whether the launcher has started this process's job again after a failed attempt
/// (TORCHELASTIC_RESTART_COUNT).
[[nodiscard]] bool is_restart_of_process();

/// The step of the last checkpoint of the run of that name that earlier attempts have reported to
/// dtrun (DTRUN_COMMITTED, "RUN=STEP RUN=STEP"); -1: none.
[[nodiscard]] std::int64_t committed_step_of_process(std::string_view run);

/// The variables that limit which instructions the mathematical libraries use, as far as they are
/// set in this process's environment, "ONEDNN_MAX_CPU_ISA=AVX2 ..."; empty: none.
[[nodiscard]] std::string cpu_settings_of_process();

/// Bounds how long OpenMP's threads of this process spin between pieces of work, before they sleep,
/// unless GOMP_SPINCOUNT or OMP_WAIT_POLICY says otherwise. OpenMP reads it when it is loaded.
void bound_spinning();

/// Has CUDA give streams 32 hardware queues of a GPU in place of 8, so that none waits for what is
/// in front of it in a queue of several (docs/guide/devices.md), unless CUDA_DEVICE_MAX_CONNECTIONS says
/// otherwise. CUDA reads it at its first call.
///
/// Threads: one, before others may read the environment.
void give_streams_queues();

/// Has CUDA load every kernel before anything runs, in place of each at its first launch, unless
/// CUDA_MODULE_LOADING says otherwise. To load a kernel CUDA waits for whatever runs on the GPU:
/// where that is a receive, whose sender may wait for the rank that loads, it would wait for ever
/// (docs/guide/devices.md). CUDA reads it at its first call.
///
/// Threads: one, before others may read the environment.
void load_kernels_early();

/// Has NCCL connect ranks at the network interface of that name, unless NCCL_SOCKET_IFNAME says
/// otherwise. NCCL reads it when its first communicator is made.
void name_nccl_interface(const std::string& name);

/// How many of the `present` GPUs CUDA shows to a process with this CUDA_VISIBLE_DEVICES (null: it
/// is not set): it reads the list up to the first entry that names none of them.
[[nodiscard]] std::int64_t visible_gpus(const char* listed, std::int64_t present);
/// The same for this process.
[[nodiscard]] std::int64_t visible_gpus_of_process(std::int64_t present);

/// Cores this process may run on, by its affinity mask and its control groups' quota, at least 1.
[[nodiscard]] std::int64_t usable_cores();

}  // namespace dtrain::base
