// Resolves the layout: strategy, mesh sizes, sharding, pipeline and backend of the launched ranks.
#include <algorithm>
#include <set>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::int64_t kDefaultLocalRanks = 2;

std::string_view plural(std::int64_t count) { return count == 1 ? "" : "s"; }

// Rejects ranks that share a GPU, which would only wait for each other.
void check_devices(const DeviceList& devices, const Launch& launch) {
  std::set<std::int64_t> gpus;
  for (const auto& gpu : devices.devices) {
    if (gpu && !gpus.insert(*gpu).second) {
      fail(ErrorKind::usage,
           "--devices {}: two local ranks name GPU {}: give each rank its own GPU", devices, *gpu);
    }
  }
  if (!devices.names_gpus()) return;
  if (launch.devices.empty()) {
    fail(ErrorKind::usage,
         "--devices {}: GPU {} needs libdtrain_cuda.so; run scripts/build.sh dtrain_cuda, or give "
         "cpu for every rank",
         devices, *gpus.begin());
  }
  if (gpus.size() != devices.devices.size()) {
    fail(ErrorKind::usage, "--devices {}: ranks must be all on GPUs or all on the CPU", devices);
  }
}

// "--pp, --dp and --tp"
std::string axis_flags() {
  std::string text;
  for (const Axis axis : kAxes) {
    const bool is_last = axis == kAxes.back();
    text += fmt::format("{}--{}", text.empty() ? "" : is_last ? " and " : ", ", name_of(axis));
  }
  return text;
}

// For a single process, how to start as many ranks as the given sizes need; otherwise empty.
std::string launch_advice(LayoutConfig layout, std::int64_t num_ranks) {
  if (num_ranks > 1 || strategy_of(layout).is_local()) return {};
  std::int64_t needed = 1;
  for (const Axis axis : kAxes) needed *= std::max<std::int64_t>(1, size_of(layout, axis));
  needed = std::max<std::int64_t>(2, needed);
  return fmt::format("; to start {0} ranks: dtrun -n {0} -- dtrain ...", needed);
}

// Puts all ranks on the axis of a one-axis strategy.
void resolve_one_axis(LayoutConfig& layout, std::int64_t num_ranks) {
  const StrategyTraits& strategy = strategy_of(layout);
  const LayoutConfig asked = layout;
  for (const Axis axis : kAxes) {
    std::int64_t& given = size_of(layout, axis);
    const bool takes_all = axis == strategy.axis;
    const std::int64_t size = takes_all ? num_ranks : 1;
    if (given != 0 && given != size) {
      const std::string change =
          strategy.is_local() && takes_all ? fmt::format("use --local-ranks {}", given)
          : takes_all
              ? fmt::format("launch --strategy {} with {} ranks, or omit --{}",
                            layout.strategy == Strategy::single ? Strategy::ddp : layout.strategy,
                            given, name_of(axis))
              : fmt::format("omit it, or use --strategy 3d, which takes {}", axis_flags());
      fail(ErrorKind::usage, "--{} {} does not fit --strategy {} {} {} rank{}: {}{}", name_of(axis),
           given, layout.strategy, strategy.is_local() ? "with" : "launched with", num_ranks,
           plural(num_ranks), change, launch_advice(asked, num_ranks));
    }
    given = size;
  }
}

// Derives a single missing size from the others and the number of ranks.
void resolve_three_axes(LayoutConfig& layout, std::int64_t num_ranks) {
  std::int64_t product = 1;
  std::int64_t num_missing = 0;
  std::string given;
  std::int64_t* missing = nullptr;
  for (const Axis axis : kAxes) {
    std::int64_t& size = size_of(layout, axis);
    if (size == 0) {
      ++num_missing;
      missing = &size;
      continue;
    }
    product *= size;
    given += fmt::format("{}--{} {}", given.empty() ? "" : " x ", name_of(axis), size);
  }
  if (num_missing > 1) {
    fail(
        ErrorKind::usage,
        "--strategy 3d needs at least two of {}, found {}: the third is derived from the {} rank{} "
        "launched (--pp 1 --tp 1 makes all ranks data-parallel){}",
        axis_flags(), given.empty() ? "none" : given, num_ranks, plural(num_ranks),
        launch_advice(layout, num_ranks));
  }
  const bool fits = missing == nullptr ? product == num_ranks : num_ranks % product == 0;
  if (!fits) {
    fail(ErrorKind::usage, "{} = {} does not {} the {} rank{} launched: change one of them{}",
         given, product, missing == nullptr ? "equal" : "divide", num_ranks, plural(num_ranks),
         launch_advice(layout, num_ranks));
  }
  if (missing != nullptr) *missing = num_ranks / product;
}

// Suggests flags for a layout that sets tp or pp but no strategy: "--strategy tp --tp 2", or
// --strategy 3d with at least two sizes.
std::string flags_with_strategy(LayoutConfig layout, std::int64_t num_ranks) {
  const auto num_given =
      std::ranges::count_if(kAxes, [&](Axis axis) { return size_of(layout, axis) != 0; });
  const bool is_whole = num_given == 1 && std::max(layout.pp, layout.tp) == num_ranks;
  if (num_given == 1 && !is_whole) {
    layout.pp = std::max<std::int64_t>(1, layout.pp);
    layout.tp = std::max<std::int64_t>(1, layout.tp);
  }
  std::string text =
      is_whole ? (layout.tp != 0 ? "--strategy tp" : "--strategy pp") : "--strategy 3d";
  for (const Axis axis : kAxes) {
    const std::int64_t size = size_of(layout, axis);
    if (size != 0) text += fmt::format(" --{} {}", name_of(axis), size);
  }
  if (!is_whole) resolve_three_axes(layout, num_ranks);  // throws if the suggestion would fail
  return text;
}

// The strategy of a command line without --strategy, and the flags that imply it.
struct DefaultStrategy {
  Strategy strategy = Strategy::ddp;
  std::string flags = {};  // "--zero-stage 3"; empty for the default, ddp
};

DefaultStrategy default_strategy(const CommandLine& command_line, const LayoutConfig& layout) {
  Config config;
  config.layout = layout;
  const auto given = [&](std::initializer_list<std::string_view> keys) {
    std::string text;
    for (const std::string_view key : keys) {
      if (!command_line.gives(key)) continue;
      const Setting& setting = *find_key(key);
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", setting.flag,
                          value_text(setting, config));
    }
    return text;
  };
  const std::string zero = given({"layout.zero_stage"});
  const std::string fsdp = given({"layout.fsdp_sharding", "layout.shard_size"});
  if (!zero.empty() && !fsdp.empty()) {
    fail(ErrorKind::usage,
         "{} and {} need different strategies: give --strategy zero or fsdp, and only the flags of "
         "that one",
         zero, fsdp);
  }
  if (!zero.empty()) return {Strategy::zero, zero};
  if (!fsdp.empty()) return {Strategy::fsdp, fsdp};
  return {};
}

// Resolves the number of data-parallel ranks that share one copy of the state.
void resolve_shard_size(LayoutConfig& layout, const Launch& launch) {
  const bool is_hybrid =
      data_axis_of(layout) == DataAxisKind::fsdp && layout.fsdp_sharding == FsdpSharding::hybrid;
  const std::int64_t whole = sharding_of(layout) == Sharding::none ? 1 : layout.dp;
  if (!is_hybrid) {
    if (layout.shard_size != 0 && layout.shard_size != whole) {
      fail(ErrorKind::usage,
           "--shard-size {} does not fit --strategy {}, which shards over {} rank{}: omit it, or "
           "use "
           "--strategy fsdp --fsdp-sharding hybrid",
           layout.shard_size, layout.strategy, whole, plural(whole));
    }
    layout.shard_size = whole;
    return;
  }
  const bool is_per_node = layout.shard_size == 0;
  if (is_per_node) {
    // The node's ranks divided by the stride of the data axis, whose inner axes take the rest.
    const std::int64_t stride = mesh_of(layout).stride(Axis::dp);
    const std::int64_t on_node = std::max<std::int64_t>(1, launch.local_world_size / stride);
    layout.shard_size = std::min(on_node, layout.dp);
  }
  if (layout.dp % layout.shard_size != 0) {
    if (is_per_node) {
      fail(ErrorKind::usage,
           "--fsdp-sharding hybrid shards over the {} data-parallel ranks of this node, which do "
           "not divide all {}: give every rank the same --shard-size, a divisor of {}",
           layout.shard_size, layout.dp, layout.dp);
    }
    fail(ErrorKind::usage,
         "--shard-size {} does not divide the {} data-parallel rank{}: choose a divisor",
         layout.shard_size, layout.dp, plural(layout.dp));
  }
}

// Rejects compression that saves no bytes (docs/guide/compression.md). An uncompressed all-reduce
// sends each gradient twice, 1/R at a time; topk sends its values, 4 bytes each, to every replica.
void check_bytes(const Compression& compression, std::int64_t replicas, Dtype whole) {
  using Kind = Compression::Kind;
  const bool is_rounding = compression.kind == Kind::bfloat16 || compression.kind == Kind::float16;
  if (is_rounding && bytes_of(whole) == 2) {
    fail(ErrorKind::usage, "--compress {} saves nothing: gradients are already sent in {}",
         compression, whole);
  }
  if (compression.kind != Kind::top_k) return;
  const double bound = static_cast<double>(bytes_of(whole)) / (2 * static_cast<double>(replicas));
  if (compression.ratio < bound) return;
  fail(ErrorKind::usage,
       "--compress {} on {} replicas sends {:.3g} times the bytes of uncompressed gradients in {}: "
       "use a ratio below {:.3g}",
       compression, replicas, compression.ratio / bound, whole, bound);
}

}  // namespace

Launch with_local_ranks(LayoutConfig& layout, const Launch& launch) {
  const StrategyTraits& strategy = strategy_of(layout);
  if (!strategy.is_local()) return launch;
  if (launch.world_size != 1) {
    fail(ErrorKind::usage,
         "--strategy {} runs its ranks as threads of one process, but {} processes were launched: "
         "use --strategy {}, or launch one process",
         layout.strategy, launch.world_size, *strategy.with_processes);
  }
  check_devices(layout.devices, launch);
  const auto num_devices = static_cast<std::int64_t>(layout.devices.devices.size());
  if (layout.local_ranks == 0) {
    layout.local_ranks = num_devices == 0 ? kDefaultLocalRanks : num_devices;
  }
  if (num_devices != 0 && num_devices != layout.local_ranks) {
    fail(ErrorKind::usage,
         "--devices {} names {} device{}, but --local-ranks is {}: name one per rank",
         layout.devices, num_devices, plural(num_devices), layout.local_ranks);
  }
  Launch result = launch;
  result.world_size = layout.local_ranks;
  result.local_world_size = layout.local_ranks;
  return result;
}

std::string apply_default_strategy(const CommandLine& command_line, const Launch& launch,
                                   LayoutConfig& layout) {
  const bool is_given = command_line.gives("layout.strategy");
  const Command command = command_line.command;
  const bool has_ranks =
      command == Command::train || command == Command::verify || command == Command::doctor;
  const bool is_single = layout.strategy == Strategy::single;
  if (is_given || !has_ranks || !is_single || launch.world_size == 1) return {};
  if (layout.pp > 1 || layout.tp > 1) {
    fail(ErrorKind::usage, "{} ranks with --{} {} need --strategy: use {}", launch.world_size,
         layout.tp > 1 ? "tp" : "pp", layout.tp > 1 ? layout.tp : layout.pp,
         flags_with_strategy(layout, launch.world_size));
  }
  const DefaultStrategy chosen = default_strategy(command_line, layout);
  layout.strategy = chosen.strategy;
  return fmt::format("{} ranks {}: using --strategy {}", launch.world_size,
                     chosen.flags.empty() ? "without --strategy" : "with " + chosen.flags,
                     layout.strategy);
}

void resolve_layout(LayoutConfig& layout, const Launch& launch) {
  if (layout.strategy == Strategy::single && launch.world_size != 1) {
    fail(ErrorKind::usage, "--strategy single was launched with {} ranks: use --strategy ddp",
         launch.world_size);
  }
  if (strategy_of(layout).axis) {
    resolve_one_axis(layout, launch.world_size);
  } else {
    resolve_three_axes(layout, launch.world_size);
  }
  if (layout.nnodes != 0 && launch.num_nodes != 0 && layout.nnodes != launch.num_nodes) {
    fail(ErrorKind::usage,
         "--nnodes {}, but the launch has {} node{}: launch on {}, or change --nnodes",
         layout.nnodes, launch.num_nodes, plural(launch.num_nodes), layout.nnodes);
  }
  if (layout.nnodes == 0) layout.nnodes = std::max<std::int64_t>(1, launch.num_nodes);
}

void resolve_sharding(LayoutConfig& layout, const MachineConfig& machine, const Launch& launch) {
  resolve_shard_size(layout, launch);
  const bool is_power_of_two = (layout.shard_size & (layout.shard_size - 1)) == 0;
  if (layout.shard_size != layout.dp && !is_power_of_two && machine.reduction != Reduction::fast) {
    fail(ErrorKind::usage,
         "--shard-size {} is not a power of two, so --reduction ordered cannot keep its order "
         "across shards and replicas: choose a power of two, or --reduction fast",
         layout.shard_size);
  }
  const bool shards_gradients = sharding_of(layout) >= Sharding::gradients && layout.shard_size > 1;
  if (layout.accumulate == Accumulation::automatic) {
    layout.accumulate = shards_gradients ? Accumulation::sharded : Accumulation::local;
  }
  if (layout.accumulate == Accumulation::sharded && !shards_gradients) {
    fail(ErrorKind::usage,
         "--accumulate sharded needs sharded gradients, but --strategy {} on {} rank{} does not "
         "shard them: use fsdp, or zero with stage 2 or 3, on several ranks, or --accumulate local",
         layout.strategy, layout.dp, plural(layout.dp));
  }
}

// Only all-reduces between replicas are compressed: a reduce-scatter delivers exact shards.
void check_compression(const LayoutConfig& layout, const MachineConfig& machine) {
  const Compression& compression = machine.compress;
  if (compression.is_none() || layout.dp == 1) return;
  if (layout.shard_size == layout.dp) {
    fail(ErrorKind::usage,
         "--compress {} works between replicas, but --strategy {} on {} ranks has none, since each "
         "rank holds its own shard: use --strategy ddp, or fsdp with --fsdp-sharding hybrid and a "
         "--shard-size below {}",
         compression, layout.strategy, layout.dp, layout.dp);
  }
  check_bytes(compression, layout.dp / layout.shard_size,
              layout.shard_size > 1 ? wide_dtype(machine) : machine.reduce_dtype);
}

void check_pipeline(const Config& config, bool has_model) {
  const LayoutConfig& layout = config.layout;
  if (layout.pp == 1) return;
  require_schedule_fits(layout.schedule_pp,
                        {.stages = layout.pp, .microbatches = config.batch.grad_accum},
                        "--grad-accum");
  if (!has_model) return;
  require_layers_fit(layout.schedule_pp, layout.pp, layout.pp_split.layers, config.model.layers);
}

Backend resolve_backend(Backend requested, const LayoutConfig& layout, const Launch& launch) {
  const bool is_local = strategy_of(layout).is_local();
  if (requested == Backend::local && !is_local) {
    fail(ErrorKind::usage,
         "--backend local connects threads, but the ranks of --strategy {} are processes: use "
         "--backend auto, or --strategy dp or mp",
         layout.strategy);
  }
  if (is_local) {
    if (requested == Backend::automatic || requested == Backend::local) return Backend::local;
    fail(ErrorKind::usage,
         "--backend {} connects processes, but the ranks of --strategy {} are threads: use "
         "--backend auto",
         requested, layout.strategy);
  }
  if (requested == Backend::none && launch.world_size > 1) {
    fail(ErrorKind::usage, "--backend none was launched with {} ranks: use --backend auto",
         launch.world_size);
  }
  if (requested != Backend::automatic) return requested;
  if (launch.world_size == 1) return Backend::none;
  if (launch.num_nodes == 1) return Backend::shm;
  return launch.num_nodes == 0 ? Backend::automatic : Backend::hier;
}

// --nnodes only checks the launch.
bool is_chosen_by_auto(const Setting& setting) {
  return (setting.key.starts_with("layout.") && setting.key != "layout.strategy" &&
          setting.key != "layout.nnodes") ||
         setting.key == "batch.grad_accum";
}

void check_auto_layout(const CommandLine& command_line, const Config& config) {
  const Command command = command_line.command;
  if (config.layout.strategy != Strategy::automatic || command == Command::plan) return;
  if (command != Command::train) {
    fail(ErrorKind::usage,
         "--strategy auto chooses the layout of a training run: give dtrain {} another strategy",
         name_of(command));
  }
  for (const Setting& setting : settings()) {
    if (!is_chosen_by_auto(setting) || is_default(setting, config)) continue;
    std::string origin(setting.flag);
    for (const Assignment& given : command_line.assignments) {
      if (given.setting == &setting) origin = given.origin;
    }
    fail(ErrorKind::usage,
         "{} {} cannot be combined with --strategy auto, which chooses it: omit it, or name a "
         "strategy (dtrain plan compares them)",
         origin, value_text(setting, config));
  }
}

void check_auto_device(const DeviceName& device) {
  if (device.is_cpu()) return;
  fail(ErrorKind::usage,
       "--strategy auto can measure CPUs only, but --device is {}: name a strategy (dtrain plan "
       "--device-tflops compares them)",
       device);
}

}  // namespace dtrain::config
