#include "dtrain/config/schema/schema.h"

#include <algorithm>
#include <iterator>

#include "dtrain/base/text/number.h"
#include "dtrain/config/family.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config {
namespace {

using namespace conditions;
using namespace rows;

// Largest sizes: products of them (bytes of all parameters, tokens of a step) stay below 2^63.
constexpr double kMaxLevels = 1 << 10;
constexpr double kMaxWidth = 1 << 14;
constexpr double kMaxVocab = 1LL << 31;
constexpr double kMaxPositions = 1 << 16;
constexpr double kMaxMicrobatch = 1 << 20;
constexpr double kMaxGlobalBatch = 1LL << 40;
constexpr double kMaxRanks = 1 << 20;
constexpr double kMaxSteps = 1e12;
constexpr double kMaxProfiledSteps = 1000;  // more make files that no viewer opens
constexpr double kMaxSeconds = 1e6;
constexpr double kMaxThreads = 1 << 12;
constexpr double kMaxElements = 1LL << 40;
constexpr double kMaxTflops = 1e9;

// Without momentum there is no state to go on from.
constexpr ResumeRule kOfMomentum = [](const Config& now, const Config& saved) {
  if (!kSgd.is_met(now)) return OnResume::free;
  return saved.train.momentum == 0 ? OnResume::fixed : OnResume::noted;
};

// GPU 1 computes as GPU 0 does, but no CPU as a GPU.
constexpr ResumeRule kOfDeviceKind = [](const Config& now, const Config& saved) {
  return now.machine.device.kind == saved.machine.device.kind ? OnResume::free : OnResume::noted;
};

// A guard that only warns changes no bits.
constexpr ResumeRule kOfSkippedSpikes = [](const Config& now, const Config& saved) {
  return kSkipsSpikes(now) || kSkipsSpikes(saved) ? OnResume::noted : OnResume::free;
};

#define FIELD(member) field_of([](auto& config) -> auto& { return config.member; })

// The model's own settings stand before this one.
constexpr std::string_view kAfterFamilies = "model.vocab";

// key, flag, value, unit, help, commands, field; then what it allows, how a resume treats it, when
// it has an effect
constexpr Setting kSettings[] = {
    {"model.name", "--model", "NAME", "", "architecture", kTrain, FIELD(model.name), kFixed},
    {"model.levels", "--levels", "L", "", "number of layers", kTrain, FIELD(model.levels),
     between(1, kMaxLevels), kFixed},
    {"model.width", "--width", "D", "", "width of the residual stream", kTrain, FIELD(model.width),
     between(1, kMaxWidth), kFixed},
    {"model.vocab", "--vocab", "V", "",
     "tokens in the vocabulary; not given: as many as the data's, 256 for bytes", kTrain,
     FIELD(model.vocab), between(1, kMaxVocab), kFixed},
    {"model.dropout", "--dropout", "P", "", "dropout probability", kTrain, FIELD(model.dropout),
     from_to_below(0, 1), kFixed},
    {"model.tie_levels", "--tie-levels", "on|off", "",
     "all levels share one set of matrices; off gives every level its own", kTrain,
     FIELD(model.tie_levels), kFixed},

    {"data.train", "--data", "FILE", "",
     "token file, or text that is read as bytes; FILE:WEIGHT,FILE:WEIGHT mixes several",
     kTrain | kEvaluate, FIELD(data.train)},
    {"data.validation", "--val-data", "FILE", "", "one file for validation", kTrain,
     FIELD(data.validation)},
    {"data.val_fraction", "--val-fraction", "F", "",
     "share of --data, at its end, that is kept for validation", kTrain | kEvaluate,
     FIELD(data.val_fraction), from_to_below(0, 1), kWithNewData},
    {"data.seq_len", "--seq-len", "T", "tokens", "positions of a sequence", kTrain | kEvaluate,
     FIELD(data.seq_len), between(1, kMaxPositions), kWithNewData},

    {"batch.global", "--global-batch", "N", "sequences",
     "batch of one optimizer step over all ranks; 0: microbatch x grad-accum x dp, or 8 where "
     "neither is given",
     kTrain, FIELD(batch.global), between(0, kMaxGlobalBatch), kWithNewData},
    {"batch.microbatch", "--microbatch", "N", "sequences",
     "sequences that a rank computes at once; changes rounding; 0: with --global-batch the largest "
     "number up to 8 that divides a rank's share and fits --memory-limit and what is free in the "
     "memory, else 1",
     kTrain | kEvaluate, FIELD(batch.microbatch), between(0, kMaxMicrobatch), kNoted, kChangesBits},
    {"batch.grad_accum", "--grad-accum", "N", "microbatches",
     "microbatches per rank and step; 0: follows from the other two, else 1, or the stages of a "
     "pipeline that trains",
     kEngine, FIELD(batch.grad_accum), between(0, kMaxMicrobatch), changes_bits(kHasOwnOrder)},

    {"train.steps", "--steps", "N", "steps", "optimizer steps to train", kTrain, FIELD(train.steps),
     between(1, kMaxSteps), kNotedWith<kFallingRate>},
    {"train.epochs", "--epochs", "X", "passes",
     "passes over the training data; sets --steps; 0: --steps decides", kTrain, FIELD(train.epochs),
     between(0, kMaxSteps)},
    {"train.seed", "--seed", "N", "",
     "decides initial weights, sample order, dropout and generated text", kTrain | kGenerate,
     FIELD(train.seed), kWithNewData},
    {"train.lr", "--lr", "X", "",
     "learning rate after the warm-up; auto: one that suits the model's width", kTrain,
     FIELD(train.lr), at_least(0), kNoted},
    {"train.weight_decay", "--weight-decay", "X", "",
     "weight decay: decoupled from the gradient with adamw, added to it with sgd", kTrain,
     FIELD(train.weight_decay), at_least(0), kNoted},
    {"train.beta1", "--beta1", "X", "", "AdamW beta1: decay of the first moment", kTrain,
     FIELD(train.beta1), from_to_below(0, 1), kNotedWith<kAdamW>, kNeeds<kAdamW>},
    {"train.beta2", "--beta2", "X", "", "AdamW beta2: decay of the second moment", kTrain,
     FIELD(train.beta2), from_to_below(0, 1), kNotedWith<kAdamW>, kNeeds<kAdamW>},
    {"train.eps", "--eps", "X", "", "AdamW epsilon: added to the root of the second moment", kTrain,
     FIELD(train.eps), above(0, 1), kNotedWith<kAdamW>, kNeeds<kAdamW>},
    {"train.momentum", "--momentum", "X", "", "SGD momentum", kTrain, FIELD(train.momentum),
     from_to_below(0, 1), kOfMomentum, kNeeds<kSgd>},
    {"train.grad_clip", "--grad-clip", "X", "", "largest global gradient norm; 0 is off", kTrain,
     FIELD(train.grad_clip), at_least(0), kNoted},
    {"train.schedule", "--schedule", "NAME", "",
     "learning rate after the warm-up; wsd: stable, then a linear decay", kTrain,
     FIELD(train.schedule), one_of(kSchedules), kNoted},
    {"train.warmup_steps", "--warmup-steps", "N", "steps",
     "steps at the start, over which the learning rate rises linearly; auto: a twentieth of "
     "--steps",
     kTrain, FIELD(train.warmup_steps), between(0, kMaxSteps), kNoted},
    {"train.decay_steps", "--decay-steps", "N", "steps",
     "steps at the end, over which schedule wsd falls; 0: a tenth of --steps, rounded up, at most "
     "what the warm-up leaves",
     kTrain, FIELD(train.decay_steps), between(0, kMaxSteps), kNotedWith<kDecay>, kNeeds<kDecay>},
    {"train.min_lr", "--min-lr", "X", "",
     "learning rate where the linear, cosine and wsd schedules end; auto: a tenth of --lr", kTrain,
     FIELD(train.min_lr), at_least(0), kNoted, kNeeds<kFallingRate>},
    {"train.optimizer", "--optimizer", "NAME", "",
     "rule of the update: adamw, or sgd with momentum", kTrain, FIELD(train.optimizer),
     one_of(kUpdateRules), kFixed},
    {"train.on_nonfinite", "--on-nonfinite", "NAME", "",
     "what to do when a loss or gradient is not finite: stop, or skip the update", kTrain,
     FIELD(train.on_nonfinite), one_of(kOnNonfinite), kNoted},
    {"train.max_skipped", "--max-skipped", "N", "steps",
     "updates in a row that may be skipped (--on-nonfinite or --spike-guard skip, overflows of "
     "float16); one more ends the run",
     kTrain, FIELD(train.max_skipped), between(0, kMaxSteps), kNeeds<kSkips>},
    {"train.patience", "--patience", "N", "evaluations",
     "end the run after this many evaluations in a row without a new lowest validation loss; 0 is "
     "off",
     kTrain, FIELD(train.patience), between(0, kMaxSteps), kNeeds<kValidation, kEvaluatesOften>},
    {"train.spike_guard", "--spike-guard", "NAME", "",
     "what to do when the loss or the gradient norm is far above its recent average: nothing "
     "(off), warn, or skip the update",
     kTrain, FIELD(train.spike_guard), one_of(kSpikeGuards), kOfSkippedSpikes},
    {"train.spike_threshold", "--spike-threshold", "Z", "standard deviations",
     "standard deviations above the mean of recent logarithms, beyond which a loss or gradient "
     "norm is a spike",
     kTrain, FIELD(train.spike_threshold), above(0, kMaxSteps), kOfSkippedSpikes,
     kNeeds<kGuardsSpikes>},
    {"train.freeze", "--freeze", "NAME,...", "", "parameters that keep their initial values",
     kTrain, FIELD(train.freeze), kNoted},

    {"layout.strategy", "--strategy", "NAME", "", "how the ranks share the work", kEngine,
     FIELD(layout.strategy), one_of(kStrategies)},
    {"layout.pp", "--pp", "N", "ranks",
     "stages of the pipeline; 0: all ranks with --strategy pp and mp, what the other sizes leave "
     "with 3d",
     kEngine, FIELD(layout.pp), between(0, kMaxRanks), changes_bits(kStages.is_met)},
    {"layout.dp", "--dp", "N", "ranks",
     "data-parallel ranks; 0: all ranks with ddp, fsdp, zero and dp, what the other sizes leave "
     "with 3d",
     kEngine, FIELD(layout.dp), between(0, kMaxRanks), changes_bits(kHasOwnOrder)},
    {"layout.tp", "--tp", "N", "ranks",
     "ranks that share the arithmetic of each block; 0: all ranks with --strategy tp, what the "
     "other sizes leave with 3d",
     kEngine, FIELD(layout.tp), between(0, kMaxRanks), changes_bits(kTensorRanks.is_met)},
    {"layout.data_axis", "--data-axis", "NAME", "",
     "of --strategy 3d: what data-parallel ranks do, with the settings of the strategy of this "
     "name",
     kEngine, FIELD(layout.data_axis), one_of(kDataAxes), kNeeds<kThreeAxes>},
    {"layout.schedule_pp", "--schedule-pp", kPipelineChoices, "",
     "order of a pipeline's microbatches; interleaved:V puts V small parts of the model, at least "
     "2, on each stage; dtrain schedule shows them",
     kEngine, FIELD(layout.schedule_pp), form("gpipe, 1f1b or interleaved:V (V at least 2)"),
     kNeeds<kStages>, changes_bits(kStages.is_met)},
    {"layout.pp_split", "--pp-split", "N,...", "levels",
     "levels of each part of a pipeline; without it the parts are balanced", kEngine,
     FIELD(layout.pp_split), form("the levels of each part, as in 3,5,4"), kNeeds<kStages>,
     changes_bits(kStages.is_met)},
    {"layout.tp_vocab", "--tp-vocab", "on|off", "",
     "tensor-parallel ranks split the embedding and the head by the vocabulary too", kEngine,
     FIELD(layout.tp_vocab), kNeeds<kTensorRanks>, changes_bits(kTensorRanks.is_met)},
    {"layout.local_ranks", "--local-ranks", "N", "ranks",
     "of --strategy dp and mp: threads of the one process; 0: as many as --devices names, else 2",
     kEngine, FIELD(layout.local_ranks), between(0, kMaxThreads), kNeeds<kLocalRanks>},
    {"layout.devices", "--devices", "NAME,...", "",
     "of --strategy dp and mp: where each local rank computes: cpu, or the number of a GPU",
     kEngine, FIELD(layout.devices),
     form("cpu or the number of a GPU for each rank, as in cpu,cpu"), kNeeds<kLocalRanks>},
    {"layout.nnodes", "--nnodes", "N", "nodes",
     "nodes the job must have been launched on; 0: any number", kEngine, FIELD(layout.nnodes),
     between(0, kMaxRanks)},
    {"layout.zero_stage", "--zero-stage", "N", "",
     "of --strategy zero: 1 shards optimizer state, 2 gradients too, 3 parameters too", kEngine,
     FIELD(layout.zero_stage), between(1, 3), kNeeds<kZero>},
    {"layout.fsdp_sharding", "--fsdp-sharding", "NAME", "",
     "of --strategy fsdp: full as ZeRO-3; grad-op frees parameters only after the backward pass; "
     "hybrid shards within --shard-size ranks and replicates across; none as ddp",
     kEngine, FIELD(layout.fsdp_sharding), one_of(kFsdpShardings), kNeeds<kFsdp>},
    {"layout.shard_size", "--shard-size", "N", "ranks",
     "of hybrid: neighbours that share one copy of the state; 0: the ranks of a node", kEngine,
     FIELD(layout.shard_size), between(0, kMaxRanks), changes_bits(kHasOwnOrder)},
    {"layout.wrap", "--wrap", "POLICY", "",
     "what is gathered and reduced at once: block, size:N (neighbours merged to at least N "
     "parameters), none (the whole model)",
     kEngine, FIELD(layout.wrap), form("block, size:N (parameters, at least 1) or none"),
     kNeeds<kShards>},
    {"layout.accumulate", "--accumulate", "NAME", "",
     "sharded: reduce every microbatch, least memory; local: keep whole gradients until the last; "
     "auto: sharded where gradients are sharded",
     kEngine, FIELD(layout.accumulate), one_of(kAccumulations), changes_bits(kHasOwnOrder)},
    {"layout.backward_prefetch", "--backward-prefetch", "NAME", "",
     "when the next unit of a backward pass is gathered: before the backward of the one in use "
     "(pre), after it (post), when it is needed (none)",
     kEngine, FIELD(layout.backward_prefetch), one_of(kBackwardPrefetches),
     kNeeds<kGathers, kSeveralUnits, kFreesAfterUse>},
    {"layout.forward_prefetch", "--forward-prefetch", "on|off", "",
     "gather the next unit of a forward pass under the one in use", kEngine,
     FIELD(layout.forward_prefetch), kNeeds<kGathers, kSeveralUnits, kSeveralGathers>},
    {"layout.limit_gathers", "--limit-gathers", "N", "units",
     "most units that prefetching may hold or gather at the same time", kEngine,
     FIELD(layout.limit_gathers), between(1, kMaxLevels),
     kNeeds<kGathers, kSeveralUnits, kPrefetches>},

    {"machine.device", "--device", "auto|cpu|cuda|cuda:N", "",
     "where to compute; auto: a GPU where there is one", kModel, FIELD(machine.device),
     form("auto, cpu, cuda or cuda:N"), kOfDeviceKind},
    {"machine.share_devices", "--share-devices", "on|off", "",
     "let ranks that are processes compute on one GPU, for tests: slower than one rank", kEngine,
     FIELD(machine.share_devices), kNeeds<kDevice, kSeveralProcesses>},
    {"machine.backend", "--backend", "NAME", "",
     "how ranks communicate; auto: none for a single process, local between its threads, shm on "
     "one node, hier (shm within a node, gloo across) on several, gloo where each rank has a node "
     "of its own or memory cannot be shared; mpi: Open MPI's, under mpirun",
     kEngine, FIELD(machine.backend), one_of(kBackends)},
    {"machine.dtype", "--dtype", "NAME", "", "arithmetic of the forward and backward pass", kModel,
     FIELD(machine.dtype), one_of(kDtypes), kNoted, kNeeds<kComputed>},
    {"machine.param_dtype", "--param-dtype", "NAME", "",
     "dtype of the parameters that blocks read and compute with; auto: --dtype",
     kEngine | kEvaluate, FIELD(machine.param_dtype), one_of(kRoleDtypes), kNoted, kChangesBits},
    {"machine.reduce_dtype", "--reduce-dtype", "NAME", "",
     "dtype of gradients on their way between ranks; auto: float32, or float64 with --dtype "
     "float64",
     kEngine, FIELD(machine.reduce_dtype), one_of(kRoleDtypes), kNoted, changes_bits(kRounds)},
    {"machine.buffer_dtype", "--buffer-dtype", "NAME", "",
     "dtype of constant tables (positions); auto: float32, or float64 with --dtype float64",
     kEngine | kEvaluate, FIELD(machine.buffer_dtype), one_of(kRoleDtypes), kNoted, kChangesBits},
    {"machine.threads", "--threads", "N", "threads",
     "threads per rank; 0: OMP_NUM_THREADS, else the usable cores shared by the ranks of a machine",
     kAll, FIELD(machine.threads), between(0, kMaxThreads), changes_bits(kByThreads)},
    {"machine.reduction", "--reduction", "NAME", "",
     "ordered: sums in one fixed order, equal bits on any number of ranks; fast: in any order; "
     "auto: ordered on the CPU, fast on GPUs",
     kEngine, FIELD(machine.reduction), one_of(kReductions), kNoted},
    {"machine.kernels", "--kernels", "NAME", "",
     "how levels are computed; fused: one block with a backward pass of its own, on the CPU, in "
     "float32, float64 or bfloat16; plain: LibTorch's operators and its autograd; auto: fused "
     "where it exists",
     kEngine | kEvaluate, FIELD(machine.kernels), one_of(kKernels), kNoted, kChangesBits},
    {"machine.attention", "--attention", "auto|full|chunked:C", "",
     "full: each position attends to all before it, at a cost that grows with the square of "
     "--seq-len; chunked:C: to those in its chunk of C, and to a state of all earlier chunks, at a "
     "cost that grows with --seq-len; auto: the cheaper with --kernels fused, the faster on a GPU, "
     "else full",
     kEngine | kEvaluate, FIELD(machine.attention),
     form("auto, full or chunked:C (positions, at least 1)"), kNeeds<kAttention>, kNoted,
     changes_bits(kChoosesAttention)},
    {"machine.matmul_precision", "--matmul-precision", "NAME", "",
     "precision of float32 matrix products on a GPU; tf32: faster, from factors rounded to 11 bits",
     kModel, FIELD(machine.matmul_precision), one_of(kMatmulPrecisions), kNoted, kNeeds<kDevice>,
     changes_bits(kOnDevice)},
    {"machine.compress", "--compress", "none|bf16|fp16|topk:RATIO|powersgd:RANK", "",
     "how replicas compress the gradients that they send: rounded to 16 bits, only the largest "
     "values, or low-rank factors; what is not sent is added to the next step's",
     kTrain, FIELD(machine.compress),
     form("none, bf16, fp16, topk:RATIO (above 0, below 1) or powersgd:RANK (1 to 1024)"),
     kNeeds<kReplicas>, kNoted, changes_bits(kCompresses)},
    {"machine.compress_warmup", "--compress-warmup", "N", "steps",
     "steps at the start that send uncompressed gradients", kTrain, FIELD(machine.compress_warmup),
     between(0, kMaxSteps), kNeeds<kCompression>, kNoted, changes_bits(kCompresses)},
    {"machine.compress_min_elements", "--compress-min-elements", "N", "elements",
     "a rank's part of a parameter with fewer elements is sent whole", kTrain,
     FIELD(machine.compress_min_elements), between(0, kMaxElements), kNeeds<kCompression>, kNoted,
     changes_bits(kCompresses)},
    {"machine.offload", "--offload", "none|optimizer|all|disk:DIR", "",
     "what to keep in pinned host memory instead of on the GPU: optimizer (moments), all (masters "
     "too); disk:DIR keeps masters and moments in files of this folder, on a CPU",
     kEngine, FIELD(machine.offload), form("none, optimizer, all or disk:DIR"), kNeeds<kOffloads>},
    {"machine.interface", "--interface", "NAME,...", "",
     "network interface through which gloo and NCCL connect ranks, the first of these that a node "
     "has (default: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, else the route to rank 0)",
     kEngine, FIELD(machine.interface), kNeeds<kSeveralProcesses, kSockets>},
    {"machine.comm_timeout", "--comm-timeout", "TIME", "seconds",
     "the longest any wait for another rank may take (90s, 10m, 1:30:00)", kEngine,
     FIELD(machine.comm_timeout_seconds), above(0, kMaxSeconds)},
    {"machine.recompute", "--recompute", "none|gates|level|every:K|auto", "",
     "run levels again in the backward pass instead of keeping what they computed: their neurons "
     "(gates, with fused kernels), all of each (level), in groups of K of which only the first "
     "input is kept (every:K), or as few as --memory-limit allows (auto)",
     kEngine, FIELD(machine.recompute),
     form("none, gates, level, every:K (levels, at least 1) or auto"), kNeeds<kLimit>},
    {"machine.compile", "--compile", "", "",
     "on a GPU: record the passes of each block as graphs and run these from the second step on; "
     "on a CPU: compute with fused kernels",
     kTrain, FIELD(machine.compile)},
    {"machine.memory_limit", "--memory-limit", "SIZE", "",
     "memory for the tensors of a rank (4G or 4GiB, 500MB): on a CPU a run that is predicted to "
     "need more does not start, a device gives no more; 0: what the machine has for all its ranks",
     kTrain, FIELD(machine.memory_limit),
     form("a size: 4G or 4GiB (of 1024), 500MB (of 1000), or bytes; 0 for none")},
    {"machine.mixed_cpus", "--mixed-cpus", "on|off", "",
     "let ranks run on CPUs of several types, whose rounding differs: every evaluation, sample and "
     "checkpoint makes their copies of weights and moments equal again",
     kEngine, FIELD(machine.mixed_cpus)},

    {"report.log_every", "--log-every", "N", "steps", "steps between progress reports; 0 is off",
     kTrain, FIELD(report.log_every), between(0, kMaxSteps)},
    {"report.eval_every", "--eval-every", "N", "steps",
     "steps between validation losses; 0: only at the end", kTrain, FIELD(report.eval_every),
     between(0, kMaxSteps), kNeeds<kValidation>},
    {"report.eval_sequences", "--eval-sequences", "N|all", "sequences",
     "validation sequences per evaluation, spread evenly over the data; the same ones on any "
     "number of ranks",
     kTrain | kEvaluate, FIELD(report.eval_sequences),
     form("a number of sequences from 1 to 2^31, or all"), kNeeds<kValidation>,
     kNotedWith<kValidation>},
    {"report.sample_every", "--sample-every", "N", "steps",
     "steps between texts that the model generates as it trains; 0 is off", kTrain,
     FIELD(report.sample_every), between(0, kMaxSteps)},
    {"report.sample_prompt", "--sample-prompt", "TEXT", "",
     "prompt of the samples; empty: generate a new document or line", kTrain,
     FIELD(report.sample_prompt), kNeeds<kSamples>},
    {"report.tensorboard", "--tensorboard", "on|off", "",
     "also write the figures of metrics.jsonl to RUN/tensorboard, for tensorboard --logdir", kTrain,
     FIELD(report.tensorboard)},
    {"report.profile", "--profile", "N", "steps",
     "steps to trace, from the third since this launch on: prints where their time went and writes "
     "RUN/profile/trace.json for ui.perfetto.dev; 0 is off",
     kTrain, FIELD(report.profile), between(0, kMaxProfiledSteps)},

    {"checkpoint.every", "--checkpoint-every", "N|TIME|none", "",
     "steps (100) or time (90s, 10m, 1h) between checkpoints; 0: only of the last step, and when "
     "stopped early; none: only when stopped early",
     kTrain, FIELD(checkpoint.every),
     form("a number of steps (100), a time (90s, 10m, 1h30m, 1:30:00), or none, which saves only "
          "when stopped early")},
    {"checkpoint.keep_last", "--keep-last", "N", "checkpoints", "newest checkpoints that are kept",
     kTrain, FIELD(checkpoint.keep_last), between(2, kMaxSteps)},
    {"checkpoint.keep_every", "--keep-every", "N", "steps",
     "checkpoints at multiples of this are never removed; 0 is off", kTrain,
     FIELD(checkpoint.keep_every), between(0, kMaxSteps), kNeeds<kCheckpoints>},
    {"checkpoint.keep_best", "--keep-best", "", "",
     "save at every new lowest validation loss, and never remove the checkpoint of the lowest",
     kTrain, FIELD(checkpoint.keep_best), kNeeds<kValidation, kEvaluatesOften>},
    {"checkpoint.resume", "--resume", "auto|PATH|none", "",
     "resume from a checkpoint; auto: the latest complete one of the run folder, if any", kTrain,
     FIELD(checkpoint.resume), kOfStart},
    {"checkpoint.new_data", "--new-data", "", "",
     "resume with the checkpoint's step, model and optimizer, and begin other data (--data, "
     "--global-batch, --seq-len, ...) at its first sample",
     kTrain, FIELD(checkpoint.new_data), kOfStart},
    {"checkpoint.strict_resume", "--strict-resume", "", "",
     "stop if the newest checkpoint is damaged, instead of resuming from an older one", kTrain,
     FIELD(checkpoint.strict_resume), kOfStart, kNeeds<kResume>},
    {"checkpoint.init_from", "--init-from", "PATH", "",
     "initialise weights and sizes from a model file, checkpoint or run; take nothing else", kTrain,
     FIELD(checkpoint.init_from), kOfStart},
    {"checkpoint.write_limit", "--checkpoint-write-limit", "X", "MB/s",
     "rate at which each rank writes checkpoints (200, or 200MB); 0: as fast as it goes", kTrain,
     FIELD(checkpoint.write_limit_mbps), at_least(0), kNeeds<kCheckpoints>},

    {"run.dir", "--run-dir", "DIR", "",
     "folder for config.json, metrics.jsonl and the model; without it a new one, runs/NAME-N with "
     "the name of the data",
     kTrain, FIELD(run.dir), kOfStart},
    {"run.overwrite", "--overwrite", "", "", "replace the run that the folder holds", kTrain,
     FIELD(run.overwrite), kOfStart},
    {"run.time_limit", "--time-limit", "TIME", "",
     "save and stop after this time (90s, 10m, 1h30m, 1:30:00); 0: none", kTrain,
     FIELD(run.time_limit), kOfStart, form(base::kDurationForms)},

    {"generate.from", "--from", "PATH", "", "run folder, checkpoint, or model.safetensors",
     kGenerate | kEvaluate, FIELD(generate.from)},
    {"generate.from_levels", "--from-levels", "L", "",
     "levels of the model in a --from file that does not say; 0: the file says",
     kGenerate | kEvaluate, FIELD(generate.from_levels), between(0, kMaxLevels)},
    {"generate.prompt", "--prompt", "TEXT", "",
     "text to continue; -: that of standard input; empty: begin after a newline", kGenerate,
     FIELD(generate.prompt)},
    {"generate.prompt_file", "--prompt-file", "FILE", "",
     "file that holds the text to continue, every byte of it; -: standard input", kGenerate,
     FIELD(generate.prompt_file)},
    {"generate.max_tokens", "--max-tokens", "N", "tokens", "tokens to generate", kGenerate,
     FIELD(generate.max_tokens), between(1, kMaxPositions)},
    {"generate.temperature", "--temperature", "X", "",
     "temperature of sampling: below 1 prefers likely tokens; 0 always takes the likeliest",
     kGenerate, FIELD(generate.temperature), at_least(0)},
    {"generate.top_k", "--top-k", "K", "tokens", "choose among the K likeliest; 0 is off",
     kGenerate, FIELD(generate.top_k), between(0, kMaxVocab)},

    {"verify.golden", "--golden", "FILE", "", "fixture: weights, batch and expected results",
     kVerify, FIELD(verify.golden)},
    {"verify.trajectory", "--trajectory", "FILE", "", "expected AdamW losses, JSON", kVerify,
     FIELD(verify.trajectory)},
    {"verify.name", "--name", "NAME", "", "entry of the trajectory file", kVerify,
     FIELD(verify.name)},

    {"export.checkpoint", "PATH", "", "", "checkpoint, or run folder for its newest one", kExport,
     FIELD(exporting.checkpoint)},
    {"export.file", "FILE", "", "", "safetensors file to write", kExport, FIELD(exporting.file)},
    {"export.dtype", "--dtype", "NAME", "",
     "dtype of the weights in the file; auto: as in the checkpoint", kExport,
     FIELD(exporting.dtype), one_of(kExportDtypes)},
    {"export.overwrite", "--overwrite", "", "", "replace the file if it exists", kExport,
     FIELD(exporting.overwrite)},

    {"import.file", "FILE", "", "", "a model's weights, as safetensors or torch.save wrote them",
     kImport, FIELD(importing.file)},
    {"import.checkpoint", "FOLDER", "", "", "checkpoint to write; it must not exist", kImport,
     FIELD(importing.checkpoint)},
    {"import.levels", "--levels", "L", "",
     "levels of the model in a file that does not say; 0: the file says", kImport,
     FIELD(importing.levels), between(0, kMaxLevels)},

    {"plan.ranks", "--ranks", "N", "ranks",
     "ranks in the job; 0: compare every number that divides this machine's cores evenly", kPlan,
     FIELD(plan.ranks), between(0, kMaxRanks)},
    {"plan.ranks_per_node", "--ranks-per-node", "N", "ranks", "ranks of a machine; 0: all on one",
     kPlan, FIELD(plan.ranks_per_node), between(0, kMaxRanks)},
    {"plan.device_memory", "--device-memory", "SIZE", "",
     "memory that a rank may take (80GiB); 0: its share of this machine's memory", kPlan,
     FIELD(plan.device_memory),
     form("a size: 80G or 80GiB (of 1024), 500MB (of 1000), or bytes; 0 for this machine's")},
    {"plan.device_tflops", "--device-tflops", "X", "TFLOP/s",
     "speed that a rank reaches in training; 0: measured here", kPlan, FIELD(plan.device_tflops),
     between(0, kMaxTflops)},
    {"plan.link", "--link", "SIZE", "",
     "bytes per second that a rank sends to other nodes (25GB); 0: as fast as within a node", kPlan,
     FIELD(plan.link),
     form("a rate: 25GB/s (of 1000), 1.25G or 1.25GiB (of 1024), or bytes; 0 for a link that costs "
          "nothing more")},
    {"plan.show", "--show", "N", "layouts", "best layouts to show", kPlan, FIELD(plan.show),
     between(1, kMaxRanks)},
};

#undef FIELD

constexpr Group kGroups[] = {{"model", "model."},
                             {"data", "data."},
                             {"batch", "batch."},
                             {"training", "train."},
                             {"layout", "layout."},
                             {"machine", "machine."},
                             {"reports", "report."},
                             {"checkpoints", "checkpoint."},
                             {"run folder", "run."},
                             {"generation", "generate."},
                             {"verification", "verify."},
                             {"checkpoint export", "export."},
                             {"checkpoint import", "import."},
                             {"planning", "plan."}};

// kSettings with the rows of every family.
std::vector<Setting> with_families() {
  std::vector<Setting> all(std::begin(kSettings), std::end(kSettings));
  for (const Family* family : families()) {
    for (Setting row : family->settings) {
      const bool is_of_model = row.key.starts_with("model.");
      if (is_of_model) row.family = family->name;
      all.insert(is_of_model ? std::ranges::find(all, kAfterFamilies, &Setting::key) : all.end(),
                 row);
    }
  }
  std::ranges::find(all, "model.name", &Setting::key)->choices = family_names();
  return all;
}

}  // namespace

std::span<const Setting> settings() noexcept {
  static const std::vector<Setting> all = with_families();
  return all;
}
std::span<const Group> groups() noexcept { return kGroups; }

}  // namespace dtrain::config
