#include "dtrain/config/advice.h"

namespace dtrain::config {
namespace {

constexpr std::string_view kPerRank =
    "per rank and backward pass; --global-batch is the batch of a whole step";
constexpr std::string_view kLaunches = "dtrun starts the ranks: dtrun -n RANKS -- dtrain ...";
constexpr std::string_view kLaunchesNodes =
    "dtrun starts the ranks of each node: dtrun --nnodes N -n RANKS ... -- dtrain ... "
    "(docs/nodes.md)";
constexpr std::string_view kDecayEndsWithRun =
    "leave it out: linear and cosine reach --min-lr at the last step (--steps); with --schedule "
    "wsd "
    "only the last --decay-steps decay";
constexpr std::string_view kFromLauncher =
    "leave it out: ranks take it from the environment of dtrun, torchrun, srun or mpirun";
constexpr std::string_view kNoService =
    "nothing is sent anywhere: see RUN/tensorboard, or dtrain report RUN";
constexpr std::string_view kNoWorkers = "leave it out: data is always prefetched";
constexpr std::string_view kShuffled = "leave it out: every epoch is shuffled";
constexpr std::string_view kPrepares =
    "give it to dtrain data prepare, which makes the token file for --data";
constexpr std::string_view kNoTestData =
    "there is no test split: dtrain evaluate --from RUN --data FILE measures a trained model, "
    "--val-data FILE one in training";
constexpr std::string_view kNoEvaluationAlone =
    "dtrain evaluate --from RUN --data FILE measures a trained model, --val-data FILE one in "
    "training";
constexpr std::string_view kDryRun =
    "--print-config checks the settings, dtrain doctor machines and files, dtrain plan the memory";
constexpr std::string_view kOneMoreLevelOfDetail =
    "--verbose tells all about a start; --log-every sets how often steps are printed";
constexpr std::string_view kDetailsOfTraining =
    "leave it out: it adds details to the start of dtrain train";
constexpr std::string_view kOncePerPass =
    "leave it out: fsdp and zero gather and reduce matrices that layers share once per pass";
constexpr std::string_view kOwnTolerances = "leave it out: each --dtype has its own tolerances";
constexpr std::string_view kMeasured =
    "leave it out: metrics.jsonl has loss, gradient norm, speed, memory and bytes sent of each "
    "step";
constexpr std::string_view kSavesAside = "leave it out: checkpoints are written asynchronously";
constexpr std::string_view kWritesModel =
    "leave it out: the end writes RUN/final/model.safetensors; dtrain checkpoint export makes "
    "others";
constexpr std::string_view kNoLossScale =
    "leave it out: --dtype float16 adapts its loss scale, the other dtypes need none";
constexpr std::string_view kNoAverage = "leave it out: dtrain does not support it";
constexpr std::string_view kNoSuchPart =
    "the model has no such setting: dtrain help model lists those that it has";
constexpr std::string_view kNoSuchAxis =
    "dtrain splits data (--dp), blocks (--tp) and layers (--pp), nothing else: leave it out";
constexpr std::string_view kNoFp8 =
    "the dtypes are float64, float32, bfloat16 and float16: see --dtype";
constexpr std::string_view kUsesAll = "leave it out: the parameters used by a step are known";
constexpr std::string_view kNoSampler =
    "dtrain generate chooses by --temperature and --top-k alone, one text per call";
constexpr std::string_view kFloat16 = "--dtype float16";
constexpr std::string_view kBfloat16 = "--dtype bfloat16";
constexpr std::string_view kNamesDtype = "float32, bfloat16, float16 or float64";
constexpr std::string_view kSteps = "a number of steps, or a time such as 10m";

// Names in PyTorch's examples and torchtitan, nanoGPT, llm.c, Lightning, DeepSpeed, Megatron and
// Hugging Face.
constexpr ForeignNames kForeignNames[] = {
    {"batch-size local-batch-size device-batch-size micro-batch-size "
     "train-micro-batch-size-per-gpu per-device-train-batch-size batch bs bsz mbs "
     "per-device-batch-size per-gpu-train-batch-size train-micro-batch-size micro-batch "
     "train-bs",
     "batch.microbatch", kPerRank},
    {"per-device-eval-batch-size eval-batch-size val-batch-size per-gpu-eval-batch-size",
     "batch.microbatch", "of training and evaluation"},
    {"auto-find-batch-size auto-scale-batch-size", "batch.microbatch",
     "the default is chosen to fit the memory, at most 8"},
    {"global-batch-size train-batch-size gbs global-bs effective-batch-size", "batch.global",
     "in sequences"},
    {"total-batch-size tokens-per-step batch-tokens", "batch.global", "in sequences, not tokens"},
    {"rampup-batch-size", "batch.global", "constant for the whole run"},
    {"gradient-accumulation-steps gradient-accumulation grad-accum-steps "
     "accumulate-grad-batches accum-steps accumulation-steps grad-acc grad-acc-steps "
     "gradient-acc-steps",
     "batch.grad_accum"},
    {"epoch num-epochs max-epochs num-train-epochs n-epochs train-epochs", "train.epochs"},
    {"max-steps max-iters num-iterations train-iters iterations iters num-steps "
     "training-steps total-steps max-train-steps train-steps step num-train-steps max-iter "
     "n-steps n-iters niter num-training-steps max-step limit-train-batches",
     "train.steps"},
    {"train-samples max-samples train-tokens max-tokens-trained", "train.steps",
     "in steps of --global-batch sequences"},
    {"exit-interval", "train.steps",
     "a run stops early on Ctrl-C, --time-limit or RUN/STOP, and saves"},
    {"learning-rate max-lr base-lr peak-lr init-lr initial-lr start-lr", "train.lr"},
    {"min-learning-rate end-lr final-lr lr-min minimum-lr", "train.min_lr"},
    {"min-lr-ratio min-lr-factor min-lr-rate lr-min-ratio learning-rate-decay-frac "
     "final-lr-fraction lr-min-factor end-lr-ratio",
     "train.min_lr", "a rate, not a share of --lr"},
    {"warmup-iters warmup-iterations num-warmup-steps lr-warmup-steps lr-warmup-iters "
     "lr-warmup warmup-step n-warmup-steps warmup-updates",
     "train.warmup_steps"},
    {"warmup-ratio lr-warmup-fraction warmup-fraction warmup-frac", "train.warmup_steps",
     "in steps, not a share of them"},
    {"warmup-epochs lr-warmup-samples warmup-tokens lr-warmup-init", "train.warmup_steps",
     "in steps"},
    {"lr-decay-iters lr-decay-steps lr-decay-samples", "", kDecayEndsWithRun},
    {"cooldown-steps warmdown-iters num-decay-steps lr-wsd-decay-iters", "train.decay_steps",
     "with --schedule wsd"},
    {"decay-ratio cooldown-frac lr-wsd-decay-samples decay-frac", "train.decay_steps",
     "in steps, with --schedule wsd"},
    {"lr-scheduler-type lr-scheduler lr-schedule lr-decay-style scheduler", "train.schedule"},
    {"decay-lr decay-type lr-wsd-decay-style lr-scheduler-kwargs lr-scheduler-name "
     "lr-policy decay",
     "train.schedule", "constant, linear, cosine or wsd"},
    {"wd weight-decay-rate adam-weight-decay l2 decay-rate", "train.weight_decay"},
    {"adam-beta1 adam-beta-1 b1", "train.beta1"},
    {"betas adam-betas", "train.beta1", "and --beta2"},
    {"adam-beta2 adam-beta-2 b2", "train.beta2"},
    {"adam-eps adam-epsilon epsilon", "train.eps"},
    {"clip clip-grad clip-norm max-grad-norm max-norm gradient-clipping gradient-clip-val "
     "gradient-clip grad-norm-clip grad-norm max-gradient-norm grad-clip-norm "
     "grad-clipping clip-grad-norm clip-value",
     "train.grad_clip"},
    {"random-seed manual-seed rng-seed data-seed random-state seed-everything", "train.seed"},
    {"save-every save-steps save-interval save-freq checkpoint-interval checkpoint-freq "
     "ckpt-every ckpt-interval save-strategy save-iters save-step save-period "
     "checkpoint-steps checkpoint-every-n-steps every-n-train-steps every-n-steps "
     "snapshot-interval ckpt-freq ckpt-steps always-save-checkpoint save-every-n-steps "
     "saving-steps checkpointing-steps checkpoint-iters",
     "checkpoint.every", kSteps},
    {"no-save no-checkpoint enable-checkpointing", "checkpoint.every",
     "none saves nothing before the end"},
    {"save-total-limit keep-latest-k keep-checkpoints max-checkpoints checkpoints-to-keep "
     "max-to-keep checkpoints-total-limit",
     "checkpoint.keep_last"},
    {"ckpt load load-checkpoint resume-from resume-from-checkpoint restore load-dir "
     "restart restore-from resume-path resume-run resume-dir ckpt-path auto-resume "
     "from-checkpoint checkpoint-path resume-checkpoint",
     "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"continue continue-training load-latest", "checkpoint.resume", "auto"},
    {"model-name-or-path pretrained pretrained-checkpoint finetune model-name "
     "pretrained-model init-checkpoint load-weights weights pretrained-model-name-or-path "
     "initial-load-path",
     "checkpoint.init_from"},
    {"no-load-optim no-load-rng load-model-only initial-load-model-only save-only-model",
     "checkpoint.init_from", "loads only the weights"},
    {"eval-interval eval-steps eval-freq val-every val-loss-every eval-strategy "
     "evaluation-strategy val-interval validation-interval evaluate-every "
     "eval-every-n-steps eval-period test-interval val-steps val-check-interval "
     "check-val-every-n-epoch val-freq validate-every test-every eval-step validation-freq "
     "valid-every validation-steps",
     "report.eval_every", "in steps"},
    {"skip-eval no-eval no-validation eval-on-start", "report.eval_every",
     "0 evaluates at the end alone"},
    {"eval-batches eval-iters val-max-steps val-batches val-iters limit-val-batches "
     "num-eval-batches max-eval-samples eval-samples max-eval-steps eval-max-batches "
     "val-tokens",
     "report.eval_sequences", "in sequences, not batches"},
    {"log-interval log-freq logging-steps log-steps print-every log-every-n-steps "
     "print-freq print-interval logging-interval report-every logging-freq steps-per-print "
     "log-step display-interval verbose-every log-iters",
     "report.log_every", "in steps"},
    {"silent disable-tqdm no-progress-bar enable-progress-bar no-log progress-bar", "", "--quiet"},
    {"out-dir output-dir output out save-dir log-dir work-dir run-name exp-name "
     "experiment-name experiment run-id job-name exp-dir save save-path checkpoint-dir "
     "ckpt-dir model-dir dump-folder default-root-dir logdir results-dir result-dir "
     "workdir run-folder output-path outdir",
     "run.dir"},
    {"data-path text dataset dataset-path train-data train-data-path train-file input input-bin "
     "data-file train-path data-dir data-root dataset-name corpus train-bin text-file "
     "train-files training-data train input-file train-dataset data-cache-path corpus-file",
     "data.train"},
    {"data-mix datasets data-weights per-split-data-args-path data-args-path train-weights",
     "data.train", "FILE:WEIGHT,FILE:WEIGHT mixes several"},
    {"val val-file validation-file input-val-bin valid-data validation-data eval-data "
     "eval-file eval-dataset val-dataset validation-dataset valid-data-path val-data-path "
     "val-path dev-data dev-file input-val eval-data-path validation-data-path val-bin "
     "valid-file val-set",
     "data.validation"},
    {"block-size seq-length sequence-length context-length context-size max-seq-len "
     "max-length max-position-embeddings n-ctx ctx-len context ctx max-seq-length seqlen "
     "context-window n-positions max-source-length max-sequence-length model-max-length "
     "ctx-size bptt sequence-len encoder-seq-length decoder-seq-length train-seq-len",
     "data.seq_len"},
    {"layers depth n-layer n-layers num-layers num-hidden-layers nlayers nlayer layer "
     "num-blocks n-blocks num-layer blocks encoder-num-layers",
     "model.levels"},
    {"dim d-model n-embd n-embed hidden-size hidden-dim embed-dim embedding-dim "
     "embedding-size n-dim emb-dim dmodel model-dim d-embed embd hidden",
     "model.width"},
    {"vocab-size n-vocab padded-vocab-size num-embeddings", "model.vocab"},
    {"fp16 half use-fp16 float16 fp16-opt-level fp16-backend fp16-full-eval", "machine.dtype",
     kFloat16},
    {"bf16 amp use-bf16 bfloat16 use-amp bf16-full-eval", "machine.dtype", kBfloat16},
    {"precision mixed-precision torch-dtype data-type compute-dtype default-dtype "
     "model-dtype mixed-precision-param autocast mp",
     "machine.dtype", kNamesDtype},
    {"fp32 float32 no-fp16", "machine.dtype", "float32 is the default"},
    {"gradient-checkpointing activation-checkpointing recompute-activations "
     "checkpoint-activations use-gradient-checkpointing grad-checkpointing "
     "use-checkpointing activation-checkpoint recompute-layers ac-mode "
     "enable-activation-checkpointing gradient-checkpointing-kwargs",
     "machine.recompute", "--recompute level"},
    {"activation-checkpoint.mode recompute-granularity recompute-method "
     "recompute-num-layers recompute-modules activation-checkpointing-mode "
     "selective-ac-option",
     "machine.recompute", "none, gates, level, every:K or auto"},
    {"tokenizer tokenizer-path field tokenizer-type tokenizer-model tokenizer-name-or-path "
     "vocab-file merge-file tokenizer-name tokenizer-file text-column json-keys "
     "use-fast-tokenizer hf-assets-path",
     "", kPrepares},
    {"n gpus nproc-per-node ngpus num-gpus num-processes nprocs nproc n-gpus num-proc procs ntasks "
     "np num-ranks max-restarts monitor-interval standalone",
     "", kLaunches},
    {"node-rank nodes master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf "
     "num-nodes num-machines machine-rank hostfile host-file hosts host main-process-port "
     "main-process-ip",
     "", kLaunchesNodes},
    {"local-rank rank world-size dist-url init-method rank-id global-rank", "", kFromLauncher},
    {"wandb wandb-log wandb-project wandb-run-name enable-wandb use-wandb wandb-name "
     "wandb-entity wandb-exp-name wandb-id wandb-mode no-wandb wandb-save-dir mlflow comet "
     "neptune clearml track with-tracking project entity",
     "", kNoService},
    {"num-workers dataloader-num-workers workers dataloader-pin-memory pin-memory "
     "prefetch-factor persistent-workers dataloader-prefetch-factor "
     "dataloader-persistent-workers preprocessing-num-workers data-workers dataloader-type",
     "", kNoWorkers},
    {"do-train", "", "leave it out: dtrain trains, and evaluates where there is validation data"},
    {"do-eval", "", "give --val-data or --val-fraction, and --eval-every"},
    {"loss-scale initial-loss-scale min-loss-scale loss-scale-window grad-scaler "
     "init-scale hysteresis",
     "", kNoLossScale},
    {"ema ema-decay use-ema swa label-smoothing z-loss", "", kNoAverage},
    {"async-save async-mode use-dist-ckpt dist-ckpt-format save-safetensors", "", kSavesAside},
    {"export-dtype save-model last-save-model-only push-to-hub save-final save-last "
     "hub-model-id",
     "", kWritesModel},
    {"test-data test-data-path test-file test-split test-fraction test-ratio test-dataset "
     "do-predict test-set",
     "", kNoTestData},
    {"eval-only evaluate evaluate-only test-only val-only validate test skip-train eval "
     "inference-only eval-and-exit",
     "", kNoEvaluationAlone},
    {"debug log-level logging-level verbosity", "", kOneMoreLevelOfDetail},
    {"verbose v", "", kDetailsOfTraining},
    {"tied-reshard", "", kOncePerPass},
    {"tolerance", "", kOwnTolerances},
    {"log-throughput log-params-norm log-memory-to-tensorboard timing-log-level log-timers "
     "log-num-zeros-in-grad include-num-input-tokens-seen log-grad-norm "
     "calculate-per-token-loss",
     "", kMeasured},
    {"dry-run dryrun check check-config validate-config print-args no-train fast-dev-run "
     "sanity-check overfit-single-batch overfit-batches overfit estimate-memory",
     "", kDryRun},
    {"shuffle no-shuffle shuffle-data dataloader-drop-last drop-last shuffle-buffer", "",
     kShuffled},
    {"bias disable-bias-linear no-bias use-bias rope-theta rope-base rotary-base "
     "use-rotary-position-embeddings position-embedding-type rotary-percent normalization "
     "norm-epsilon layernorm-epsilon norm-type swiglu n-inner group-query-attention "
     "num-query-groups n-kv-heads num-key-value-heads n-kv-head activation-function "
     "hidden-act qk-layernorm init-method-std initializer-range num-experts "
     "moe-router-topk lora lora-r lora-alpha lora-dropout use-peft kv-channels "
     "rope-scaling mlp-ratio activation",
     "", kNoSuchPart},
    {"fp8 fp8-format fp8-hybrid enable-fp8-linear int8 load-in-8bit load-in-4bit quantize "
     "quantization quantization-bit fp4 float8",
     "", kNoFp8},
    {"context-parallel-size context-parallel-degree sequence-parallel cp sp cp-size "
     "expert-model-parallel-size expert-parallel-degree ulysses expert-parallel-size "
     "disable-loss-parallel enable-async-tensor-parallel",
     "", kNoSuchAxis},
    {"find-unused-parameters ddp-find-unused-parameters static-graph broadcast-buffers "
     "ddp-broadcast-buffers sync-batchnorm",
     "", kUsesAll},
    {"top-p num-samples n-samples repetition-penalty num-beams do-sample min-p typical-p "
     "presence-penalty num-return-sequences beams",
     "", kNoSampler},
    {"dist-backend ddp-backend distributed-backend process-group-backend dist-init-backend",
     "machine.backend"},
    {"num-threads omp-num-threads num-cpu-threads-per-process nthreads cpus cpu-threads "
     "num-cpus",
     "machine.threads"},
    {"tp-size tensor-parallel-size tensor-model-parallel-size tensor-parallel-degree "
     "model-parallel-size tensor-parallel mp-size tensor-parallelism tp-degree "
     "tensor-mp-size autotp-size",
     "layout.tp", "with --strategy tp or 3d"},
    {"pp-size pipeline-parallel-size pipeline-model-parallel-size pipeline-parallel-degree "
     "pipeline-parallel pp-degree num-stages pipeline-stages num-pipeline-stages",
     "layout.pp", "with --strategy pp or 3d"},
    {"pipeline-parallel-schedule", "layout.schedule_pp"},
    {"pipeline-schedule pp-schedule virtual-pipeline-model-parallel-size "
     "num-layers-per-virtual-pipeline-stage pipeline-parallel-schedule-csv "
     "num-virtual-stages-per-pipeline-rank",
     "layout.schedule_pp", "gpipe, 1f1b or interleaved:V"},
    {"zero stage zero-stage-level zero-optimization data-parallel-sharding-strategy",
     "layout.zero_stage", "with --strategy zero"},
    {"sharding-strategy sharding fsdp-sharding-strategy fsdp-reshard-after-forward "
     "reshard-after-forward",
     "layout.fsdp_sharding", "with --strategy fsdp"},
    {"max-new-tokens num-tokens length max-gen-len gen-len num-tokens-to-generate "
     "max-generate n-tokens n-predict tokens-to-generate out-seq-length",
     "generate.max_tokens"},
    {"temp", "generate.temperature"},
    {"greedy", "generate.temperature", "0 takes the likeliest token"},
    {"topk topk-tokens", "generate.top_k"},
    {"start input-text start-text p", "generate.prompt"},
    {"model-path checkpoint model-file ckpt-file run", "generate.from"},
    {"stream streaming", "", "leave it out: generate writes each piece of text as it is known"},
    {"no-compile disable-compile", "", "leave it out: blocks are compiled only with --compile"},
    {"use-fsdp fsdp use-fsdp2 use-torch-fsdp2 fsdp-config fully-sharded", "layout.strategy",
     "--strategy fsdp"},
    {"use-ddp ddp ddp-impl data-parallel distributed-data-parallel multi-gpu", "layout.strategy",
     "--strategy ddp"},
    {"use-deepspeed use-distributed-optimizer use-zero deepspeed-zero sharded-ddp "
     "zero-redundancy-optimizer",
     "layout.strategy", "--strategy zero"},
    {"deepspeed", "layout.strategy", "--strategy zero, or --deepspeed-config FILE"},
    {"parallelism parallel distribution distributed dist-strategy dist parallel-mode "
     "distributed-strategy",
     "layout.strategy", "ddp, zero, fsdp, tp, pp, 3d, dp, mp or auto"},
    {"fsdp-transformer-layer-cls-to-wrap fsdp-auto-wrap-policy auto-wrap-policy "
     "fsdp-min-num-params ddp-bucket-size bucket-cap-mb ddp-bucket-cap-mb fsdp-wrap "
     "min-num-params",
     "layout.wrap", "block, size:N or none"},
    {"data-parallel-shard-degree", "layout.dp", "with --strategy fsdp"},
    {"data-parallel-size dp-size dp-degree dp-replicate", "layout.dp", "with --strategy 3d"},
    {"data-parallel-replicate-degree num-distributed-optimizer-instances hybrid-shard-size "
     "replica-group-size",
     "layout.shard_size", "with --fsdp-sharding hybrid"},
    {"offload-optimizer", "machine.offload", "--offload optimizer"},
    {"cpu-offload", "machine.offload", "--offload all"},
    {"optimizer-cpu-offload offload-param fsdp-cpu-offload enable-cpu-offload zero-offload "
     "offload-optimizer-device offload-param-device cpu-optimizer nvme-path "
     "optimizer-offload-fraction fsdp-offload-params",
     "machine.offload", "none, optimizer, all or disk:DIR"},
    {"optim", "train.optimizer"},
    {"optimizer-name opt adamw use-adamw optimizer-type", "train.optimizer", "adamw or sgd"},
    {"early-stopping-patience early-stopping early-stop early-stopping-rounds "
     "early-stop-patience",
     "train.patience", "in evaluations"},
    {"load-best-model-at-end save-best save-best-only save-top-k best-only load-best "
     "metric-for-best-model monitor",
     "checkpoint.keep_best"},
    {"sample-interval generate-every sample-freq sampling-interval sample-steps",
     "report.sample_every", "in steps"},
    {"enable-tensorboard tensorboard-log-dir tb tb-dir use-tensorboard tensorboard-logdir "
     "logging-dir tb-log-dir logger save-tb-folder log-timers-to-tensorboard",
     "report.tensorboard", "on unless --tensorboard off"},
    {"tensorboard-dir", "report.tensorboard", "RUN/tensorboard"},
    {"report-to", "report.tensorboard", "and dtrain report RUN makes a page"},
    {"enable-profiling profile-steps profiler profiling profile-freq profile-step-start "
     "profile-step-end enable-memory-snapshot use-pytorch-profiler",
     "report.profile", "in steps"},
    {"torch-compile use-compile enable-compile torch-compile-backend torch-compile-mode "
     "jit compile-model torchcompile",
     "machine.compile"},
    {"overwrite-output-dir force overwrite-output overwrite-existing clobber", "run.overwrite"},
    {"exit-duration-in-mins max-time walltime max-duration", "run.time_limit", "a time, as 2h"},
    {"sgd-momentum", "train.momentum"},
    {"freeze-layers freeze-backbone frozen", "train.freeze", "names of parameters"},
    {"check-for-nan-in-loss-and-grad detect-anomaly skip-nan detect-nan "
     "no-check-for-nan-in-loss-and-grad logging-nan-inf-filter terminate-on-nan",
     "train.on_nonfinite", "stop or skip"},
    {"check-for-spiky-loss skip-spikes loss-spike-threshold", "train.spike_guard",
     "off, warn or skip"},
    {"val-split validation-split valid-split val-frac val-ratio validation-fraction "
     "val-pct val-percent val-size valid-fraction eval-fraction test-size "
     "validation-split-percentage eval-split train-split train-val-split split train-ratio "
     "holdout held-out valid-frac",
     "data.val_fraction", "a share of --data, as 0.05"},
    {"prompts sample-text", "report.sample_prompt"},
    {"drop dropout-rate hidden-dropout attention-dropout resid-pdrop attn-pdrop embd-pdrop "
     "dropout-p attn-dropout resid-dropout drop-rate",
     "model.dropout"},
    {"tie-weights tie-embeddings tie-word-embeddings untie-embeddings-and-output-weights "
     "share-embeddings weight-tying",
     "model.tie_levels",
     "for the layers; the embedding and the output layer have matrices of their own"},
    {"arch architecture model-type model-name-config flavor config-name", "model.name"},
    {"fsdp-param-dtype params-dtype mixed-precision-param-dtype", "machine.param_dtype"},
    {"accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 mixed-precision-reduce "
     "communication-data-type grad-reduce-in-fp32 main-grads-dtype",
     "machine.reduce_dtype"},
    {"tf32 allow-tf32 tensorcores float32-matmul-precision enable-tf32 use-tf32",
     "machine.matmul_precision"},
    {"flash flash-attention use-flash-attn flash-attn attn-implementation "
     "attention-backend use-flash-attention attn-impl attn-mode",
     "machine.attention", "auto, full or chunked:C"},
    {"gpu cuda no-cuda use-cpu accelerator use-mps use-cuda gpu-id gpu-ids use-gpu cpu",
     "machine.device", "auto, cpu, cuda or cuda:N"},
    {"no-tensorboard disable-tensorboard", "report.tensorboard", "--tensorboard off"},
    {"device-ids device-list", "layout.devices", "with --strategy dp or mp"},
    {"network-interface network-interfaces gloo-socket-ifname nccl-socket-ifname",
     "machine.interface"},
    {"distributed-timeout-minutes ddp-timeout timeout init-timeout-seconds "
     "train-timeout-seconds dist-timeout",
     "machine.comm_timeout", "a time as 10m, or seconds"},
    {"deterministic-mode full-determinism deterministic use-deterministic-algorithms "
     "cudnn-deterministic",
     "machine.reduction", "ordered or fast"},
    {"grad-compression gradient-compression ddp-comm-hook compression fp16-compression "
     "powersgd",
     "machine.compress", "none, bf16, fp16, topk:RATIO or powersgd:RANK"},
    {"max-memory gpu-memory-limit memory-fraction", "machine.memory_limit"},
    {"pipeline-parallel-split-points decoder-first-pipeline-num-layers "
     "decoder-last-pipeline-num-layers partition-method pipeline-parallel-layers-per-stage "
     "pipeline-model-parallel-layout",
     "layout.pp_split", "levels of each part"},
    {"fsdp-forward-prefetch", "layout.forward_prefetch"},
    {"limit-all-gathers fsdp-limit-all-gathers", "layout.limit_gathers", "in units"},
    {"fsdp-backward-prefetch overlap-param-gather overlap-grad-reduce overlap-comm",
     "layout.backward_prefetch"},
};

}  // namespace

std::span<const ForeignNames> foreign_table() noexcept { return kForeignNames; }

}  // namespace dtrain::config
