// From what the user asked for to what runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

struct CommandLine;

/// How this process was started, as far as it decides settings.
struct Launch {
  std::int64_t world_size = 1;
  std::int64_t num_nodes = 1;             ///< 0: unknown
  std::int64_t local_world_size = 1;      ///< ranks that share this machine's cores
  std::int64_t threads_hint = 0;          ///< OMP_NUM_THREADS; 0: not set
  std::int64_t usable_cores = 1;          ///< of this machine, for all its ranks
  std::vector<std::string> devices = {};  ///< kinds that this build brings, beside the CPU
  std::int64_t num_gpus = 0;              ///< of this machine, with their driver
  std::string unused_gpus = {};           ///< why the machine's GPUs are not among them
};

/// float32, or float64 where all is float64: of what follows from no other dtype.
[[nodiscard]] Dtype wide_dtype(const MachineConfig& machine);

/// Gives every role the dtype that follows from machine.dtype, unless it was told one.
///
/// Throws: Error{usage} where float64 meets another dtype.
void resolve_dtypes(MachineConfig& machine);

/// Replaces every automatic value by what it stands for (batch, dp, threads, backend, device,
/// dtypes, shards, decay steps) and refuses settings that contradict each other or the launch.
/// Reads no file. Backend auto stays where the launch does not tell on how many nodes it runs:
/// comm::create_world then finds out.
///
/// Throws: Error{usage} naming the settings, their values and what to change.
[[nodiscard]] Config resolve(Command command, Config config, const Launch& launch);

/// Returns whether gradients are float16 at some point, so that small ones would be lost. machine:
/// of a resolved configuration.
[[nodiscard]] bool needs_loss_scaling(const MachineConfig& machine);

// How the ranks of a launch are laid out (resolve_layout.cpp).

/// The launch as other settings see it: ranks that are threads of this process count like launched
/// ones. Settles --local-ranks and --devices.
///
/// Throws: Error{usage} where the launch has several processes already, and for devices that do not
///         fit the ranks or that this build cannot use.
[[nodiscard]] Launch with_local_ranks(LayoutConfig& layout, const Launch& launch);

/// Sets a strategy if several processes were launched and neither the command line nor a DeepSpeed
/// file gives one: `single` of a configuration file cannot be meant for them. It is zero with
/// --zero-stage, fsdp with --fsdp-sharding or --shard-size, otherwise ddp. Returns a notice; empty
/// if the strategy is unchanged.
///
/// Throws: Error{usage} naming the flags of a fitting strategy where --pp or --tp is above 1, or
///         the flags that choose both zero and fsdp.
[[nodiscard]] std::string take_default_strategy(const CommandLine& command_line,
                                                const Launch& launch, LayoutConfig& layout);

/// Settles the sizes of all axes and the number of nodes.
///
/// Throws: Error{usage} naming the sizes that do not make the ranks that were launched.
void resolve_layout(LayoutConfig& layout, const Launch& launch);

/// Settles how many data-parallel ranks share one copy of the state, and what accumulates it.
void resolve_sharding(LayoutConfig& layout, const MachineConfig& machine, const Launch& launch);

/// Of a settled layout and dtypes.
///
/// Throws: Error{usage} where compression of gradients has no place, or saves no bytes.
void check_compression(const LayoutConfig& layout, const MachineConfig& machine);

/// Throws: Error{usage} where the pipeline's settings do not go together, with the microbatches or
///         with the model, where `knows_model`.
void check_pipeline(const Config& config, bool knows_model);

/// none, local, shm, gloo, or automatic where the ranks have to meet first.
///
/// Throws: Error{usage} where the one asked for does not serve these ranks.
[[nodiscard]] Backend resolve_backend(Backend asked, const LayoutConfig& layout,
                                      const Launch& launch);

/// True for settings that --strategy auto chooses, and that must not be given with it.
[[nodiscard]] bool is_chosen_by_auto(const Setting& setting);

/// Refuses --strategy auto beside a setting of the layout that it would choose, and for commands that
/// have no layout to choose. config: as asked.
///
/// Throws: Error{usage} naming the flag, or the file and its key, that set it.
void check_open_layout(const CommandLine& command_line, const Config& config);

/// Throws: Error{usage} on a device whose layouts nothing here can measure.
void check_open_device(const DeviceName& device);

/// The peak of --lr auto: of AdamW on a BDH of this width, as measured
/// (docs/guide/benchmarks.md).
[[nodiscard]] double default_learning_rate(std::int64_t width);

/// The steps of --warmup-steps auto.
[[nodiscard]] std::int64_t default_warmup_steps(std::int64_t steps);

}  // namespace dtrain::config
