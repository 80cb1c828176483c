#include "dtrain/config/resolve/advice.h"

namespace dtrain::config {
namespace {

constexpr std::string_view kPerRank =
    "per rank and backward pass; --global-batch is the batch of a whole step";
constexpr std::string_view kLaunches = "dtrun starts the ranks: dtrun -n RANKS -- dtrain ...";
constexpr std::string_view kLaunchesNodes =
    "dtrun starts the ranks of each node: dtrun --nnodes N -n RANKS ... -- dtrain ... "
    "(docs/guide/nodes.md)";
constexpr std::string_view kDecayEndsWithRun =
    "omit it: linear and cosine fall to --min-lr until the end of the run (--steps); with "
    "--schedule wsd only the last --decay-steps decay";
constexpr std::string_view kFromLauncher =
    "omit it: ranks read it from the environment that dtrun, torchrun, srun or mpirun set";
constexpr std::string_view kNoService =
    "no tracking service is supported: see RUN/tensorboard, or dtrain report RUN";
constexpr std::string_view kNoWorkers = "omit it: data is always prefetched";
constexpr std::string_view kShuffled = "omit it: every epoch is shuffled";
constexpr std::string_view kPrepares =
    "give it to dtrain data prepare, which makes the token file for --data";
constexpr std::string_view kNoTestData =
    "there is no test split: dtrain evaluate --from RUN --data FILE evaluates a trained model, "
    "--val-data FILE evaluates during training";
constexpr std::string_view kNoEvaluationAlone =
    "dtrain evaluate --from RUN --data FILE evaluates a trained model, --val-data FILE evaluates "
    "during training";
constexpr std::string_view kDryRun =
    "--print-config checks settings, dtrain doctor machines and files, dtrain plan memory";
constexpr std::string_view kVerbosity =
    "--verbose prints all details of a start; --log-every sets how often steps are printed";
constexpr std::string_view kTrainOnlyVerbosity =
    "omit it: it adds details to the start of dtrain train";
constexpr std::string_view kOncePerPass =
    "omit it: fsdp and zero gather and reduce matrices shared by layers once per pass";
constexpr std::string_view kOwnTolerances = "omit it: each --dtype has its own tolerances";
constexpr std::string_view kMeasured =
    "omit it: metrics.jsonl records loss, gradient norm, speed, memory and bytes sent of each step";
constexpr std::string_view kSavesAsynchronously = "omit it: checkpoints are written asynchronously";
constexpr std::string_view kWritesModel =
    "omit it: a run ends by writing RUN/final/model.safetensors; dtrain checkpoint export writes "
    "others";
constexpr std::string_view kNoLossScale =
    "omit it: --dtype float16 adapts its loss scale, the other dtypes need none";
constexpr std::string_view kUnsupported = "omit it: dtrain does not support it";
constexpr std::string_view kNoSuchModelSetting =
    "the model has no such setting: dtrain help model lists those that it has";
constexpr std::string_view kNoSuchAxis =
    "omit it: dtrain parallelizes over data (--dp), within blocks (--tp) and over layers (--pp)";
constexpr std::string_view kNoFp8 =
    "the dtypes are float64, float32, bfloat16 and float16: see --dtype";
constexpr std::string_view kUsesAll = "omit it: the parameters used by a step are known";
constexpr std::string_view kSamples =
    "dtrain generate samples with --temperature, --top-k and --top-p";
constexpr std::string_view kNoSampler =
    "omit it: dtrain generate samples with --temperature, --top-k and --top-p only";
constexpr std::string_view kFloat16 = "--dtype float16";
constexpr std::string_view kBfloat16 = "--dtype bfloat16";
constexpr std::string_view kNamesDtype = "float32, bfloat16, float16 or float64";
constexpr std::string_view kSteps = "a number of steps, or a time such as 10m";

// Flags of PyTorch's examples, torchtitan, nanoGPT, llm.c, Lightning, DeepSpeed, Megatron and
// Hugging Face.
constexpr ForeignFlags kForeignFlags[] = {
    {"micro-batch-size batch-size local-batch-size device-batch-size "
     "train-micro-batch-size-per-gpu per-device-train-batch-size per-gpu-train-batch-size batch bs "
     "mbs",
     "batch.microbatch", kPerRank},
    {"per-device-eval-batch-size per-gpu-eval-batch-size eval-batch-size val-batch-size",
     "batch.microbatch", "for training and evaluation"},
    {"auto-find-batch-size auto-scale-batch-size", "batch.microbatch",
     "the default fits the memory and is at most 8"},
    {"global-batch-size train-batch-size gbs effective-batch-size", "batch.global", "in sequences"},
    {"total-batch-size tokens-per-step", "batch.global", "in sequences, not tokens"},
    {"rampup-batch-size", "batch.global", "constant for the whole run"},
    {"gradient-accumulation-steps gradient-accumulation grad-accum-steps accumulate-grad-batches",
     "batch.grad_accum"},
    {"num-epochs max-epochs num-train-epochs", "train.epochs"},
    {"max-steps max-iters num-iterations train-iters iterations training-steps max-train-steps "
     "limit-train-batches num-steps",
     "train.steps"},
    {"train-samples train-tokens", "train.steps", "in steps of --global-batch sequences"},
    {"exit-interval", "train.steps",
     "a run stops early on Ctrl-C, --time-limit or RUN/STOP, and saves"},
    {"learning-rate max-lr peak-lr base-lr", "train.lr"},
    {"min-learning-rate lr-min final-lr end-lr", "train.min_lr"},
    {"min-lr-ratio min-lr-factor learning-rate-decay-frac", "train.min_lr",
     "a rate, not a fraction of --lr"},
    {"warmup-iters warmup-iterations num-warmup-steps lr-warmup-steps lr-warmup-iters "
     "warmup-updates",
     "train.warmup_steps"},
    {"warmup-ratio lr-warmup-fraction", "train.warmup_steps", "in steps, not a fraction of them"},
    {"warmup-epochs lr-warmup-samples lr-warmup-init", "train.warmup_steps", "in steps"},
    {"lr-decay-iters lr-decay-steps lr-decay-samples", "", kDecayEndsWithRun},
    {"cooldown-steps warmdown-iters lr-wsd-decay-iters", "train.decay_steps",
     "with --schedule wsd"},
    {"decay-ratio lr-wsd-decay-samples", "train.decay_steps", "in steps, with --schedule wsd"},
    {"lr-scheduler-type lr-scheduler lr-schedule lr-decay-style scheduler", "train.schedule"},
    {"decay-lr decay-type decay lr-wsd-decay-style lr-scheduler-kwargs", "train.schedule",
     "constant, linear, cosine or wsd"},
    {"wd adam-weight-decay l2", "train.weight_decay"},
    {"adam-beta1", "train.beta1"},
    {"betas adam-betas", "train.beta1", "and --beta2"},
    {"adam-beta2", "train.beta2"},
    {"adam-eps adam-epsilon", "train.eps"},
    {"clip-grad clip clip-norm clip-grad-norm max-grad-norm max-norm gradient-clipping "
     "gradient-clip-val grad-norm-clip",
     "train.grad_clip"},
    {"random-seed manual-seed data-seed seed-everything", "train.seed"},
    {"save-every save-steps save-interval save-freq save-strategy checkpointing-steps "
     "checkpoint-interval ckpt-interval every-n-train-steps always-save-checkpoint",
     "checkpoint.every", kSteps},
    {"no-save enable-checkpointing", "checkpoint.every", "none saves only when stopped early"},
    {"save-total-limit keep-latest-k max-checkpoints checkpoints-total-limit",
     "checkpoint.keep_last"},
    {"resume-from-checkpoint resume-from resume-run ckpt ckpt-path load load-dir load-checkpoint "
     "restart auto-resume",
     "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"continue load-latest", "checkpoint.resume", "auto"},
    {"ignore-data-skip reset-dataloader", "checkpoint.new_data"},
    {"finetune model-name-or-path pretrained pretrained-checkpoint weights initial-load-path "
     "pretrained-model-name-or-path",
     "checkpoint.init_from"},
    {"no-load-optim no-load-rng initial-load-model-only save-only-model", "checkpoint.init_from",
     "loads only the weights"},
    {"eval-interval eval-steps eval-freq eval-strategy evaluation-strategy val-interval val-every "
     "val-loss-every val-check-interval check-val-every-n-epoch validation-freq",
     "report.eval_every", "in steps"},
    {"skip-eval no-eval eval-on-start", "report.eval_every", "0 evaluates only at the end"},
    {"eval-iters eval-batches val-max-steps limit-val-batches max-eval-samples max-eval-steps "
     "val-tokens",
     "report.eval_sequences", "in sequences, not batches"},
    {"log-interval log-freq logging-steps log-every-n-steps print-every print-freq steps-per-print",
     "report.log_every", "in steps"},
    {"silent disable-tqdm no-progress-bar enable-progress-bar", "", "--quiet"},
    {"output-dir out-dir output out save-dir save-path save log-dir logdir run-name exp-name "
     "experiment-name checkpoint-dir dump-folder default-root-dir workdir results-dir",
     "run.dir"},
    {"data-path dataset dataset-path dataset-name train-data train-data-path train-file input "
     "input-bin data-dir train",
     "data.train"},
    {"data-cache-path", "", "omit it: the order of samples is computed, not stored"},
    {"ckpt-dir", "", "omit it: --run-dir names the run folder, --init-from the initial weights"},
    {"data-mix data-weights per-split-data-args-path data-args-path", "data.train",
     "FILE:WEIGHT,FILE:WEIGHT mixes several"},
    {"val validation-file val-file input-val-bin valid-data-path val-data-path eval-data "
     "validation-data val-dataset",
     "data.validation"},
    {"block-size seq-length sequence-length context-length context max-seq-len max-seq-length "
     "max-length max-source-length model-max-length bptt max-position-embeddings n-ctx "
     "encoder-seq-length decoder-seq-length",
     "data.seq_len"},
    {"n-layer n-layers num-layers num-hidden-layers nlayers depth encoder-num-layers",
     "model.layers"},
    {"n-embd d-model dim hidden-size embed-dim hidden-dim embedding-dim", "model.width"},
    {"vocab-size n-vocab padded-vocab-size", "model.vocab"},
    {"fp16 half use-fp16 float16 fp16-full-eval fp16-opt-level fp16-backend", "machine.dtype",
     kFloat16},
    {"bf16 amp use-bf16 bfloat16 use-amp bf16-full-eval", "machine.dtype", kBfloat16},
    {"precision mixed-precision torch-dtype mp mixed-precision-param autocast", "machine.dtype",
     kNamesDtype},
    {"fp32 float32 no-fp16", "machine.dtype", "float32 is the default"},
    {"gradient-checkpointing activation-checkpointing recompute-activations checkpoint-activations "
     "gradient-checkpointing-kwargs use-gradient-checkpointing",
     "machine.recompute", "--recompute level"},
    {"activation-checkpoint.mode recompute-granularity recompute-method recompute-num-layers "
     "selective-ac-option recompute-modules",
     "machine.recompute", "none, gates, level, every:K or auto"},
    {"tokenizer tokenizer-path tokenizer-type tokenizer-model tokenizer-name vocab-file merge-file "
     "text-column field json-keys hf-assets-path use-fast-tokenizer tokenizer-name-or-path",
     "", kPrepares},
    {"n np gpus ngpus n-gpus nproc-per-node nproc nprocs num-gpus num-processes num-ranks ntasks "
     "max-restarts monitor-interval standalone",
     "", kLaunches},
    {"node-rank nodes num-nodes num-machines machine-rank master-addr master-port rdzv-backend "
     "rdzv-endpoint rdzv-id rdzv-conf hostfile host hosts main-process-ip main-process-port",
     "", kLaunchesNodes},
    {"local-rank global-rank rank world-size dist-url init-method", "", kFromLauncher},
    {"wandb wandb-log wandb-project wandb-run-name wandb-name wandb-exp-name wandb-save-dir "
     "wandb-entity enable-wandb mlflow comet track with-tracking",
     "", kNoService},
    {"num-workers dataloader-num-workers workers preprocessing-num-workers pin-memory "
     "dataloader-pin-memory prefetch-factor persistent-workers dataloader-prefetch-factor "
     "dataloader-persistent-workers dataloader-type",
     "", kNoWorkers},
    {"do-train", "", "omit it: dtrain trains, and evaluates if it has validation data"},
    {"do-eval", "", "give --val-data or --val-fraction, and --eval-every"},
    {"loss-scale initial-loss-scale min-loss-scale loss-scale-window grad-scaler hysteresis", "",
     kNoLossScale},
    {"ema ema-decay use-ema swa label-smoothing z-loss", "", kUnsupported},
    {"async-save async-mode use-dist-ckpt dist-ckpt-format save-safetensors", "",
     kSavesAsynchronously},
    {"export-dtype save-model last-save-model-only save-last push-to-hub hub-model-id", "",
     kWritesModel},
    {"test-data test-data-path test-file do-predict", "", kNoTestData},
    {"eval-only evaluate val-only test skip-train inference-only eval", "", kNoEvaluationAlone},
    {"debug log-level logging-level", "", kVerbosity},
    {"verbose v", "", kTrainOnlyVerbosity},
    {"tied-reshard", "", kOncePerPass},
    {"tolerance", "", kOwnTolerances},
    {"log-throughput log-params-norm log-timers log-num-zeros-in-grad timing-log-level "
     "log-grad-norm include-num-input-tokens-seen log-memory-to-tensorboard "
     "calculate-per-token-loss",
     "", kMeasured},
    {"dry-run check fast-dev-run overfit-batches overfit-single-batch print-args estimate-memory",
     "", kDryRun},
    {"shuffle no-shuffle dataloader-drop-last drop-last", "", kShuffled},
    {"position-embedding-type normalization norm-type swiglu "
     "activation-function num-experts lora lora-r lora-alpha lora-dropout "
     "use-rotary-position-embeddings rotary-percent group-query-attention moe-router-topk "
     "architectures",
     "", kNoSuchModelSetting},
    {"fp8 fp8-format fp8-hybrid float8 enable-fp8-linear int8 load-in-8bit load-in-4bit "
     "quantization quantize",
     "", kNoFp8},
    {"context-parallel-size context-parallel-degree sequence-parallel expert-model-parallel-size "
     "expert-parallel-degree cp sp disable-loss-parallel enable-async-tensor-parallel",
     "", kNoSuchAxis},
    {"find-unused-parameters ddp-find-unused-parameters static-graph broadcast-buffers "
     "ddp-broadcast-buffers sync-batchnorm",
     "", kUsesAll},
    {"do-sample", "", kSamples},
    {"repetition-penalty repeat-penalty presence-penalty frequency-penalty length-penalty "
     "no-repeat-ngram-size num-beams best-of min-p typical-p",
     "", kNoSampler},
    {"dist-backend ddp-backend distributed-backend process-group-backend", "machine.backend"},
    {"num-threads omp-num-threads num-cpu-threads-per-process cpus", "machine.threads"},
    {"tp-size tensor-parallel-size tensor-model-parallel-size tensor-parallel-degree "
     "tensor-parallel model-parallel-size",
     "layout.tp", "with --strategy tp or 3d"},
    {"pp-size pipeline-parallel-size pipeline-model-parallel-size pipeline-parallel-degree "
     "num-stages",
     "layout.pp", "with --strategy pp or 3d"},
    {"pipeline-parallel-schedule", "layout.schedule_pp"},
    {"pipeline-schedule virtual-pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
     "pipeline-parallel-schedule-csv num-virtual-stages-per-pipeline-rank",
     "layout.schedule_pp", "gpipe, 1f1b or interleaved:V"},
    {"zero stage zero-optimization data-parallel-sharding-strategy", "layout.zero_stage",
     "with --strategy zero"},
    {"sharding-strategy fsdp-sharding-strategy fsdp-reshard-after-forward reshard-after-forward",
     "layout.fsdp_sharding", "with --strategy fsdp"},
    {"max-new-tokens num-tokens length max-gen-len num-tokens-to-generate out-seq-length n-predict "
     "num-predict",
     "generate.max_tokens"},
    {"temp", "generate.temperature"},
    {"greedy", "generate.temperature", "0 takes the likeliest token"},
    {"topk", "generate.top_k"},
    {"p topp", "generate.top_p"},
    {"num-samples num-return-sequences", "generate.samples"},
    {"stop-strings stop-sequences stop-token reverse-prompt", "generate.stop"},
    {"sample-input-file", "generate.prompts"},
    {"start input-text", "generate.prompt"},
    {"model-path checkpoint model-file run", "generate.from"},
    {"stream", "", "omit it: generate always streams its output"},
    {"no-compile", "", "omit it: blocks are compiled only with --compile"},
    {"fsdp use-fsdp use-torch-fsdp2 fsdp-config", "layout.strategy", "--strategy fsdp"},
    {"ddp use-ddp ddp-impl data-parallel multi-gpu distributed-data-parallel", "layout.strategy",
     "--strategy ddp"},
    {"use-deepspeed use-distributed-optimizer use-zero sharded-ddp", "layout.strategy",
     "--strategy zero"},
    {"deepspeed", "layout.strategy", "--strategy zero, or --deepspeed-config FILE"},
    {"parallelism distribution distributed parallel-mode", "layout.strategy",
     "ddp, zero, fsdp, tp, pp, 3d, dp, mp or auto"},
    {"fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap auto-wrap-policy "
     "fsdp-min-num-params ddp-bucket-size bucket-cap-mb ddp-bucket-cap-mb",
     "layout.wrap", "block, size:N or none"},
    {"data-parallel-shard-degree", "layout.dp", "with --strategy fsdp"},
    {"data-parallel-size dp-size", "layout.dp", "with --strategy 3d"},
    {"data-parallel-replicate-degree num-distributed-optimizer-instances", "layout.shard_size",
     "with --fsdp-sharding hybrid"},
    {"offload-optimizer", "machine.offload", "--offload optimizer"},
    {"cpu-offload", "machine.offload", "--offload all"},
    {"optimizer-cpu-offload cpu-optimizer offload-param fsdp-cpu-offload enable-cpu-offload "
     "offload-optimizer-device offload-param-device fsdp-offload-params optimizer-offload-fraction "
     "nvme-path",
     "machine.offload", "none, optimizer, all or disk:DIR"},
    {"optim", "train.optimizer"},
    {"optimizer-name adamw", "train.optimizer", "adamw or sgd"},
    {"early-stopping-patience early-stopping", "train.patience", "in evaluations"},
    {"load-best-model-at-end save-best save-top-k metric-for-best-model monitor",
     "checkpoint.keep_best"},
    {"sample-interval generate-every", "report.sample_every", "in steps"},
    {"enable-tensorboard use-tensorboard tb logging-dir tensorboard-logdir "
     "log-timers-to-tensorboard logger save-tb-folder tensorboard-log-dir",
     "report.tensorboard", "on unless --tensorboard off"},
    {"tensorboard-dir", "report.tensorboard", "RUN/tensorboard"},
    {"report-to", "report.tensorboard", "and dtrain report RUN makes a page"},
    {"enable-profiling profile-steps profile-freq profiler profiling profile-step-start "
     "profile-step-end enable-memory-snapshot use-pytorch-profiler",
     "report.profile", "in steps"},
    {"torch-compile use-compile enable-compile torch-compile-backend torch-compile-mode",
     "machine.compile"},
    {"overwrite-output-dir force", "run.overwrite"},
    {"exit-duration-in-mins max-time", "run.time_limit", "a time, as 2h"},
    {"sgd-momentum", "train.momentum"},
    {"freeze-layers", "train.freeze", "names of parameters"},
    {"check-for-nan-in-loss-and-grad detect-anomaly terminate-on-nan "
     "no-check-for-nan-in-loss-and-grad logging-nan-inf-filter",
     "train.on_nonfinite", "stop or skip"},
    {"check-for-spiky-loss skip-spikes", "train.spike_guard", "off, warn or skip"},
    {"val-split validation-split val-ratio split test-size validation-split-percentage",
     "data.val_fraction", "a fraction of --data, as 0.05"},
    {"hidden-dropout attention-dropout resid-pdrop attn-pdrop embd-pdrop", "model.dropout"},
    {"n-head n-heads num-heads num-attention-heads", "model.heads"},
    {"arch architecture model-type flavor config-name", "model.name"},
    {"fsdp-param-dtype params-dtype mixed-precision-param-dtype", "machine.param_dtype"},
    {"accumulate-allreduce-grads-in-fp32 mixed-precision-reduce communication-data-type "
     "grad-reduce-in-bf16 grad-reduce-in-fp32 main-grads-dtype",
     "machine.reduce_dtype"},
    {"tf32 allow-tf32 tensorcores float32-matmul-precision", "machine.matmul_precision"},
    {"flash use-flash-attn attn-implementation attention-backend", "machine.attention",
     "auto, full or chunked:C"},
    {"cuda no-cuda use-cpu gpu accelerator gpu-ids cpu", "machine.device",
     "auto, cpu, cuda or cuda:N"},
    {"no-tensorboard", "report.tensorboard", "--tensorboard off"},
    {"device-ids", "layout.devices", "with --strategy dp or mp"},
    {"gloo-socket-ifname nccl-socket-ifname network-interface", "machine.interface"},
    {"distributed-timeout-minutes ddp-timeout timeout init-timeout-seconds train-timeout-seconds",
     "machine.comm_timeout", "a time as 10m, or seconds"},
    {"deterministic deterministic-mode full-determinism use-deterministic-algorithms",
     "machine.reduction", "ordered or fast"},
    {"ddp-comm-hook gradient-compression powersgd", "machine.compress",
     "none, bf16, fp16, topk:RATIO or powersgd:RANK"},
    {"max-memory", "machine.memory_limit"},
    {"pipeline-parallel-split-points decoder-first-pipeline-num-layers partition-method "
     "pipeline-parallel-layers-per-stage decoder-last-pipeline-num-layers "
     "pipeline-model-parallel-layout",
     "layout.pp_split", "layers of each part"},
    {"fsdp-forward-prefetch", "layout.forward_prefetch"},
    {"limit-all-gathers fsdp-limit-all-gathers", "layout.limit_gathers", "in units"},
    {"fsdp-backward-prefetch overlap-param-gather overlap-grad-reduce overlap-comm",
     "layout.backward_prefetch"},
};

}  // namespace

std::span<const ForeignFlags> foreign_flags() noexcept { return kForeignFlags; }

}  // namespace dtrain::config
