// Settings of the parallel layout: strategy, sizes, sharding, pipeline.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr Setting kLayoutSettings[] = {
    {"layout.strategy", "--strategy", "NAME", "",
     "parallelism strategy: how the ranks divide the work", kEngine, FIELD(layout.strategy),
     one_of(kStrategies)},
    {"layout.pp", "--pp", "N", "ranks",
     "pipeline stages; 0: all ranks with --strategy pp and mp, derived from --dp and --tp with 3d",
     kEngine, FIELD(layout.pp), between(0, kMaxRanks), changes_bits(kStages.is_met)},
    {"layout.dp", "--dp", "N", "ranks",
     "data-parallel ranks; 0: all ranks with --strategy ddp, fsdp, zero and dp, derived from --pp "
     "and --tp with 3d",
     kEngine, FIELD(layout.dp), between(0, kMaxRanks), changes_bits(kHasOwnSummationOrder)},
    {"layout.tp", "--tp", "N", "ranks",
     "tensor-parallel ranks, which split each block; 0: all ranks with --strategy tp, derived from "
     "--dp and --pp with 3d",
     kEngine, FIELD(layout.tp), between(0, kMaxRanks), changes_bits(kTensorRanks.is_met)},
    {"layout.data_axis", "--data-axis", "NAME", "",
     "with --strategy 3d: strategy of the data axis, which takes the settings of that strategy",
     kEngine, FIELD(layout.data_axis), one_of(kDataAxes), kRequires<kThreeAxes>},
    {"layout.schedule_pp", "--schedule-pp", kPipelineChoices, "",
     "pipeline schedule; interleaved:V puts V model chunks (at least 2) on each stage; dtrain "
     "schedule shows the timelines",
     kEngine, FIELD(layout.schedule_pp), syntax("gpipe, 1f1b or interleaved:V (V at least 2)"),
     kRequires<kStages>, changes_bits(kStages.is_met)},
    {"layout.pp_split", "--pp-split", "N,...", "layers",
     "layers in each part of the pipeline; default: balanced", kEngine, FIELD(layout.pp_split),
     syntax("the layers in each part, as in 3,5,4"), kRequires<kStages>,
     changes_bits(kStages.is_met)},
    {"layout.tp_vocab", "--tp-vocab", "on|off", "",
     "also split the embedding and the output head along the vocabulary among tensor-parallel "
     "ranks",
     kEngine, FIELD(layout.tp_vocab), kRequires<kTensorRanks>, changes_bits(kTensorRanks.is_met)},
    {"layout.local_ranks", "--local-ranks", "N", "ranks",
     "with --strategy dp or mp: ranks, as threads of one process; 0: one per name in --devices, "
     "else 2",
     kEngine, FIELD(layout.local_ranks), between(0, kMaxThreads), kRequires<kLocalRanks>},
    {"layout.devices", "--devices", "NAME,...", "",
     "with --strategy dp or mp: the device of each local rank, cpu or a GPU number", kEngine,
     FIELD(layout.devices), syntax("cpu or the number of a GPU for each rank, as in cpu,cpu"),
     kRequires<kLocalRanks>},
    {"layout.nnodes", "--nnodes", "N", "nodes", "required number of nodes; 0: any number", kEngine,
     FIELD(layout.nnodes), between(0, kMaxRanks)},
    {"layout.zero_stage", "--zero-stage", "N", "",
     "with --strategy zero: 1 shards optimizer state, 2 also gradients, 3 also parameters", kEngine,
     FIELD(layout.zero_stage), between(1, 3), kRequires<kZero>},
    {"layout.fsdp_sharding", "--fsdp-sharding", "NAME", "",
     "with --strategy fsdp: full (as ZeRO-3); grad-op (frees parameters only after the backward "
     "pass); hybrid (shards within groups of --shard-size ranks and replicates across them); none "
     "(as ddp)",
     kEngine, FIELD(layout.fsdp_sharding), one_of(kFsdpShardings), kRequires<kFsdp>},
    {"layout.shard_size", "--shard-size", "N", "ranks",
     "with --fsdp-sharding hybrid: consecutive ranks that shard one copy of the state; 0: the "
     "ranks of a node",
     kEngine, FIELD(layout.shard_size), between(0, kMaxRanks), changes_bits(kHasOwnSummationOrder)},
    {"layout.wrap", "--wrap", "POLICY", "",
     "unit that is gathered and reduced at once: block, size:N (consecutive blocks with at least N "
     "parameters), none (the whole model)",
     kEngine, FIELD(layout.wrap), syntax("block, size:N (parameters, at least 1) or none"),
     kRequires<kShards>},
    {"layout.accumulate", "--accumulate", "NAME", "",
     "gradient accumulation; sharded: reduce every microbatch, least memory; local: keep unsharded "
     "gradients until the last microbatch; auto: sharded if gradients are sharded",
     kEngine, FIELD(layout.accumulate), one_of(kAccumulations),
     changes_bits(kHasOwnSummationOrder)},
    {"layout.backward_prefetch", "--backward-prefetch", "NAME", "",
     "when the backward pass gathers the next unit: before the current unit's backward (pre), "
     "after it (post), on demand (none)",
     kEngine, FIELD(layout.backward_prefetch), one_of(kBackwardPrefetches),
     kRequires<kGathers, kSeveralUnits, kFreesAfterUse>},
    {"layout.forward_prefetch", "--forward-prefetch", "on|off", "",
     "gather the next unit during the current unit's forward pass", kEngine,
     FIELD(layout.forward_prefetch), kRequires<kGathers, kSeveralUnits, kSeveralGathers>},
    {"layout.limit_gathers", "--limit-gathers", "N", "units",
     "maximum number of units that prefetching holds or gathers at a time", kEngine,
     FIELD(layout.limit_gathers), between(1, kMaxLayers),
     kRequires<kGathers, kSeveralUnits, kPrefetches>},
};

}  // namespace

std::span<const Setting> layout() noexcept { return kLayoutSettings; }

}  // namespace dtrain::config::tables
