// Settings of the parallel layout: strategy, sizes, sharding, pipeline.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr Setting kLayoutSettings[] = {
    {"layout.strategy", "--strategy", "NAME", "", "how the ranks share the work", kEngine,
     FIELD(layout.strategy), one_of(kStrategies)},
    {"layout.pp", "--pp", "N", "ranks",
     "stages of the pipeline; 0: all ranks with --strategy pp and mp, what the other sizes leave "
     "with 3d",
     kEngine, FIELD(layout.pp), between(0, kMaxRanks), changes_bits(kStages.is_met)},
    {"layout.dp", "--dp", "N", "ranks",
     "data-parallel ranks; 0: all ranks with ddp, fsdp, zero and dp, what the other sizes leave "
     "with 3d",
     kEngine, FIELD(layout.dp), between(0, kMaxRanks), changes_bits(kHasOwnSummationOrder)},
    {"layout.tp", "--tp", "N", "ranks",
     "ranks that share the arithmetic of each block; 0: all ranks with --strategy tp, what the "
     "other sizes leave with 3d",
     kEngine, FIELD(layout.tp), between(0, kMaxRanks), changes_bits(kTensorRanks.is_met)},
    {"layout.data_axis", "--data-axis", "NAME", "",
     "of --strategy 3d: what data-parallel ranks do, with the settings of the strategy of this "
     "name",
     kEngine, FIELD(layout.data_axis), one_of(kDataAxes), kRequires<kThreeAxes>},
    {"layout.schedule_pp", "--schedule-pp", kPipelineChoices, "",
     "order of a pipeline's microbatches; interleaved:V puts V small parts of the model, at least "
     "2, on each stage; dtrain schedule shows them",
     kEngine, FIELD(layout.schedule_pp), syntax("gpipe, 1f1b or interleaved:V (V at least 2)"),
     kRequires<kStages>, changes_bits(kStages.is_met)},
    {"layout.pp_split", "--pp-split", "N,...", "layers",
     "layers of each part of a pipeline; without it the parts are balanced", kEngine,
     FIELD(layout.pp_split), syntax("the layers of each part, as in 3,5,4"), kRequires<kStages>,
     changes_bits(kStages.is_met)},
    {"layout.tp_vocab", "--tp-vocab", "on|off", "",
     "tensor-parallel ranks split the embedding and the head by the vocabulary too", kEngine,
     FIELD(layout.tp_vocab), kRequires<kTensorRanks>, changes_bits(kTensorRanks.is_met)},
    {"layout.local_ranks", "--local-ranks", "N", "ranks",
     "of --strategy dp and mp: threads of the one process; 0: as many as --devices names, else 2",
     kEngine, FIELD(layout.local_ranks), between(0, kMaxThreads), kRequires<kLocalRanks>},
    {"layout.devices", "--devices", "NAME,...", "",
     "of --strategy dp and mp: where each local rank computes: cpu, or the number of a GPU",
     kEngine, FIELD(layout.devices),
     syntax("cpu or the number of a GPU for each rank, as in cpu,cpu"), kRequires<kLocalRanks>},
    {"layout.nnodes", "--nnodes", "N", "nodes",
     "nodes the job must have been launched on; 0: any number", kEngine, FIELD(layout.nnodes),
     between(0, kMaxRanks)},
    {"layout.zero_stage", "--zero-stage", "N", "",
     "of --strategy zero: 1 shards optimizer state, 2 gradients too, 3 parameters too", kEngine,
     FIELD(layout.zero_stage), between(1, 3), kRequires<kZero>},
    {"layout.fsdp_sharding", "--fsdp-sharding", "NAME", "",
     "of --strategy fsdp: full as ZeRO-3; grad-op frees parameters only after the backward pass; "
     "hybrid shards within --shard-size ranks and replicates across; none as ddp",
     kEngine, FIELD(layout.fsdp_sharding), one_of(kFsdpShardings), kRequires<kFsdp>},
    {"layout.shard_size", "--shard-size", "N", "ranks",
     "of hybrid: neighbours that share one copy of the state; 0: the ranks of a node", kEngine,
     FIELD(layout.shard_size), between(0, kMaxRanks), changes_bits(kHasOwnSummationOrder)},
    {"layout.wrap", "--wrap", "POLICY", "",
     "what is gathered and reduced at once: block, size:N (neighbours merged to at least N "
     "parameters), none (the whole model)",
     kEngine, FIELD(layout.wrap), syntax("block, size:N (parameters, at least 1) or none"),
     kRequires<kShards>},
    {"layout.accumulate", "--accumulate", "NAME", "",
     "sharded: reduce every microbatch, least memory; local: keep whole gradients until the last; "
     "auto: sharded where gradients are sharded",
     kEngine, FIELD(layout.accumulate), one_of(kAccumulations),
     changes_bits(kHasOwnSummationOrder)},
    {"layout.backward_prefetch", "--backward-prefetch", "NAME", "",
     "when the next unit of a backward pass is gathered: before the backward of the one in use "
     "(pre), after it (post), when it is needed (none)",
     kEngine, FIELD(layout.backward_prefetch), one_of(kBackwardPrefetches),
     kRequires<kGathers, kSeveralUnits, kFreesAfterUse>},
    {"layout.forward_prefetch", "--forward-prefetch", "on|off", "",
     "gather the next unit of a forward pass under the one in use", kEngine,
     FIELD(layout.forward_prefetch), kRequires<kGathers, kSeveralUnits, kSeveralGathers>},
    {"layout.limit_gathers", "--limit-gathers", "N", "units",
     "most units that prefetching may hold or gather at the same time", kEngine,
     FIELD(layout.limit_gathers), between(1, kMaxLayers),
     kRequires<kGathers, kSeveralUnits, kPrefetches>},
};

}  // namespace

std::span<const Setting> layout() noexcept { return kLayoutSettings; }

}  // namespace dtrain::config::tables
