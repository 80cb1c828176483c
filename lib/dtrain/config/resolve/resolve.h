// Resolution of settings: replaces automatic values and checks settings against each other and
// against the launch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

struct CommandLine;

/// The facts of this process's launch that settings depend on.
struct Launch {
  std::int64_t world_size = 1;
  std::int64_t num_nodes = 1;             ///< 0: unknown
  std::int64_t local_world_size = 1;      ///< ranks that share this machine's cores
  std::int64_t threads_hint = 0;          ///< OMP_NUM_THREADS; 0: not set
  std::int64_t usable_cores = 1;          ///< of this machine, shared by its ranks
  std::vector<std::string> devices = {};  ///< kinds supported by this build besides the CPU
  std::int64_t num_gpus = 0;              ///< GPUs of this machine that have a driver
  std::string no_gpu_reason = {};         ///< why num_gpus is 0 on a machine with GPUs; or empty
};

/// The default dtype of reductions and buffers: float64 if dtype is float64, otherwise float32.
[[nodiscard]] Dtype wide_dtype(const MachineConfig& machine);

/// Replaces automatic dtypes of parameters, reductions and buffers by those that machine.dtype
/// implies.
///
/// Throws: Error{usage} if float64 is mixed with another dtype.
void resolve_dtypes(MachineConfig& machine);

/// Replaces every automatic value (batch, dp, threads, backend, device, dtypes, shards, decay
/// steps) and rejects settings that contradict each other or the launch. Reads no file. Backend auto
/// remains if the launch does not report its number of nodes; comm::create_world then counts them.
///
/// Throws: Error{usage} naming the settings, their values and what to change.
[[nodiscard]] Config resolve(Command command, Config config, const Launch& launch);

/// Resolves the settings that decide how a model is computed, except --attention auto: layout,
/// device, dtypes and kernels. Returns `launch` as with_local_ranks does.
///
/// Throws: Error{usage} as resolve.
Launch resolve_computation(Config& config, const Launch& launch);

/// Replaces --attention auto by the attention that is computed, which depends on the model's sizes.
///
/// config: after resolve_computation.
/// Throws: Error{usage} if the model's family does not support the setting.
void resolve_attention(Config& config);

/// True if parameters or reduced gradients are float16, so that small gradients would underflow.
/// machine: resolved.
[[nodiscard]] bool needs_loss_scaling(const MachineConfig& machine);

// Layout of the launched ranks (resolve_layout.cpp).

/// Returns `launch` with this process's rank threads counted as launched ranks. Resolves
/// --local-ranks and --devices.
///
/// Throws: Error{usage} if several processes were launched, or if the devices do not fit the ranks
///         or are not supported by this build.
[[nodiscard]] Launch with_local_ranks(LayoutConfig& layout, const Launch& launch);

/// Chooses a strategy for several launched processes if neither the command line nor a DeepSpeed
/// file gives one, even if a configuration file sets `single`: zero with --zero-stage, fsdp with
/// --fsdp-sharding or --shard-size, otherwise ddp. Returns a notice; empty if the strategy is
/// unchanged.
///
/// Throws: Error{usage} if --pp or --tp is above 1, naming the flags of a strategy that fits; or if
///         flags of both zero and fsdp are given.
[[nodiscard]] std::string apply_default_strategy(const CommandLine& command_line,
                                                 const Launch& launch, LayoutConfig& layout);

/// Resolves the sizes of all axes and the number of nodes.
///
/// Throws: Error{usage} naming sizes whose product is not the number of launched ranks.
void resolve_layout(LayoutConfig& layout, const Launch& launch);

/// Resolves the number of data-parallel ranks that share one copy of the state, and the gradient
/// accumulation mode. layout: its sizes resolved.
///
/// Throws: Error{usage} naming a shard size or accumulation mode that does not fit.
void resolve_sharding(LayoutConfig& layout, const MachineConfig& machine, const Launch& launch);

/// Checks gradient compression. layout, machine: resolved.
///
/// Throws: Error{usage} if no ranks exchange gradients that could be compressed, or if compression
///         saves no bytes.
void check_compression(const LayoutConfig& layout, const MachineConfig& machine);

/// Checks the pipeline's settings against each other, against the microbatches and, if `has_model`,
/// against the number of layers.
///
/// Throws: Error{usage} naming the settings that do not fit.
void check_pipeline(const Config& config, bool has_model);

/// Returns none, local, shm or hier, or `requested` unless it is automatic. Remains automatic if the
/// number of nodes is unknown until the rendezvous.
///
/// Throws: Error{usage} if `requested` does not support these ranks.
[[nodiscard]] Backend resolve_backend(Backend requested, const LayoutConfig& layout,
                                      const Launch& launch);

/// True for settings that --strategy auto chooses and that must not be given with it.
[[nodiscard]] bool is_chosen_by_auto(const Setting& setting);

/// Rejects --strategy auto with a layout setting that it would choose, and for commands that have no
/// layout to choose. config: before resolve().
///
/// Throws: Error{usage} naming the flag, or the file and key, of the setting.
void check_auto_layout(const CommandLine& command_line, const Config& config);

/// Throws: Error{usage} if the device is not a CPU: --strategy auto can only measure CPUs.
void check_auto_device(const DeviceName& device);

/// The peak learning rate of --lr auto, from measurements of AdamW on BDH models of different
/// widths (docs/guide/benchmarks.md).
[[nodiscard]] double default_learning_rate(std::int64_t width);

/// The final learning rate of --min-lr auto, for the peak rate `lr`.
[[nodiscard]] double default_min_lr(double lr);

/// The number of warm-up steps: as given, otherwise a share of all steps. A run shorter than its
/// warm-up, such as a short trial of a shipped configuration, warms up over its first half.
[[nodiscard]] std::int64_t warmup_steps_of(const TrainConfig& train);

}  // namespace dtrain::config
