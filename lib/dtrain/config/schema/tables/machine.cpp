// Settings of the machine: device, communication, dtypes, kernels, memory.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr double kMaxSeconds = 1e6;
constexpr double kMaxElements = 1LL << 40;

// Every GPU rounds alike, but not as a CPU does: only another kind of device is reported.
constexpr ResumeRule kThreadsRule = [](const Config& now, const Config& saved) {
  return kDependsOnThreads(now) || kDependsOnThreads(saved) ? OnResume::reported : OnResume::free;
};
constexpr ResumeRule kDeviceKindRule = [](const Config& now, const Config& saved) {
  return now.machine.device.kind == saved.machine.device.kind ? OnResume::free : OnResume::reported;
};

constexpr Setting kMachineSettings[] = {
    {"machine.device", "--device", "auto|cpu|cuda|cuda:N", "",
     "device to compute on; auto: a GPU if there is one", kModel, FIELD(machine.device),
     syntax("auto, cpu, cuda or cuda:N"), kDeviceKindRule},
    {"machine.share_devices", "--share-devices", "on|off", "",
     "for tests: let several rank processes share one GPU, which is slower than one rank", kEngine,
     FIELD(machine.share_devices), kRequires<kDevice, kSeveralProcesses>},
    {"machine.backend", "--backend", "NAME", "",
     "communication backend; auto: none for a single process, local between its threads, shm on "
     "one node, hier (shm within a node, gloo across nodes) on several nodes, gloo if each rank is "
     "alone on its node or memory cannot be shared; mpi: Open MPI, under mpirun",
     kEngine, FIELD(machine.backend), one_of(kBackends)},
    {"machine.dtype", "--dtype", "NAME", "", "dtype of the forward and backward pass", kModel,
     FIELD(machine.dtype), one_of(kDtypes), kReported, kRequires<kUsesDtype>},
    {"machine.param_dtype", "--param-dtype", "NAME", "",
     "dtype of the parameters that blocks read and compute with; auto: --dtype",
     kEngine | kEvaluate, FIELD(machine.param_dtype), one_of(kRoleDtypes), kReported, kChangesBits},
    {"machine.reduce_dtype", "--reduce-dtype", "NAME", "",
     "dtype in which ranks exchange gradients; auto: float32, or float64 with --dtype float64",
     kEngine, FIELD(machine.reduce_dtype), one_of(kRoleDtypes), kReported,
     changes_bits(kRoundsGradients)},
    {"machine.buffer_dtype", "--buffer-dtype", "NAME", "",
     "dtype of constant buffers (position tables); auto: float32, or float64 with --dtype float64",
     kEngine | kEvaluate, FIELD(machine.buffer_dtype), one_of(kRoleDtypes), kReported,
     kChangesBits},
    {"machine.threads", "--threads", "N", "threads",
     "threads per rank; 0: OMP_NUM_THREADS, else the machine's usable cores divided by its ranks",
     kAll, FIELD(machine.threads), between(0, kMaxThreads), kThreadsRule,
     changes_bits(kDependsOnThreads)},
    {"machine.reduction", "--reduction", "NAME", "",
     "order of sums over ranks; ordered: fixed, equal bits on any number of ranks; fast: any "
     "order; auto: ordered on the CPU, fast on GPUs",
     kEngine, FIELD(machine.reduction), one_of(kReductions), kReported},
    {"machine.kernels", "--kernels", "NAME", "",
     "implementation of the layers; fused: fused kernels with a hand-written backward pass, on the "
     "CPU, in float32, float64 or bfloat16 (in a transformer RMSNorm, RoPE, SwiGLU, GELU and "
     "losses); plain: LibTorch operators and autograd; auto: fused where available",
     kEngine | kEvaluate, FIELD(machine.kernels), one_of(kKernels), kReported, kChangesBits},
    {"machine.attention", "--attention", "auto|full|chunked:C", "",
     "full: each position attends to all earlier ones, at a cost quadratic in --seq-len; "
     "chunked:C: to those in its chunk of C positions and to a state of all earlier chunks, at a "
     "linear cost; auto: the cheaper with --kernels fused, the faster on a GPU, else full",
     kEngine | kEvaluate, FIELD(machine.attention),
     syntax("auto, full or chunked:C (positions, at least 1)"), kRequires<kAttention>, kReported,
     changes_bits(kChoosesAttention)},
    {"machine.matmul_precision", "--matmul-precision", "NAME", "",
     "precision of float32 matrix products on a GPU; tf32: faster, rounds the factors to 11 "
     "significant bits",
     kModel, FIELD(machine.matmul_precision), one_of(kMatmulPrecisions), kReported,
     kRequires<kDevice>, changes_bits(kOnDevice)},
    {"machine.compress", "--compress", "none|bf16|fp16|topk:RATIO|powersgd:RANK", "",
     "compression of the gradients that replicas send: rounded to 16 bits, the largest values "
     "only, or low-rank factors; error feedback adds what is not sent to the next step's gradients",
     kTrain, FIELD(machine.compress),
     syntax("none, bf16, fp16, topk:RATIO (above 0, below 1) or powersgd:RANK (1 to 1024)"),
     kRequires<kReplicas>, kReported, changes_bits(kCompresses)},
    {"machine.compress_warmup", "--compress-warmup", "N", "steps",
     "initial steps that send uncompressed gradients", kTrain, FIELD(machine.compress_warmup),
     between(0, kMaxSteps), kRequires<kCompression>, kReported, changes_bits(kCompresses)},
    {"machine.compress_min_elements", "--compress-min-elements", "N", "elements",
     "send a rank's part of a parameter uncompressed if it has fewer elements", kTrain,
     FIELD(machine.compress_min_elements), between(0, kMaxElements), kRequires<kCompression>,
     kReported, changes_bits(kCompresses)},
    {"machine.offload", "--offload", "none|optimizer|all|disk:DIR", "",
     "what to keep in pinned host memory instead of GPU memory: optimizer (moments), all (also "
     "master weights); on a CPU, disk:DIR keeps master weights and moments in files in this folder",
     kEngine, FIELD(machine.offload), syntax("none, optimizer, all or disk:DIR"),
     kRequires<kOffloads>},
    {"machine.interface", "--interface", "NAME,...", "",
     "network interface for gloo and NCCL: the first of these names that a node has (default: "
     "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, else the route to rank 0)",
     kEngine, FIELD(machine.interface), kRequires<kSeveralProcesses, kSockets>},
    {"machine.comm_timeout", "--comm-timeout", "TIME", "seconds",
     "maximum wait for another rank (90s, 10m, 1:30:00)", kEngine,
     FIELD(machine.comm_timeout_seconds), above(0, kMaxSeconds)},
    {"machine.recompute", "--recompute", "none|gates|level|every:K|auto", "",
     "activation checkpointing: recompute in the backward pass each layer's neurons (gates, of BDH "
     "with fused kernels), each whole layer (level), groups of K layers of which only the first "
     "input is kept (every:K), or as few layers as --memory-limit allows (auto)",
     kEngine, FIELD(machine.recompute),
     syntax("none, gates, level, every:K (layers, at least 1) or auto"),
     kRequires<kRecomputeLimit>},
    {"machine.compile", "--compile", "", "",
     "on a GPU: capture the passes of each block as graphs and replay them from the second step "
     "on; on a CPU: use fused kernels",
     kTrain, FIELD(machine.compile)},
    {"machine.memory_limit", "--memory-limit", "SIZE", "",
     "limit on each rank's tensor memory (4G or 4GiB, 500MB): a CPU run that is predicted to "
     "exceed it does not start; on a GPU, allocations beyond it fail; 0: no limit but the "
     "machine's memory, which its ranks share",
     kTrain | kGenerate, FIELD(machine.memory_limit),
     syntax("a size: 4G or 4GiB (powers of 1024), 500MB (powers of 1000), or bytes; 0 for none")},
    {"machine.mixed_cpus", "--mixed-cpus", "on|off", "",
     "allow ranks on CPU types that round differently: every evaluation, sample and checkpoint "
     "resynchronises the replicas of weights and moments",
     kEngine, FIELD(machine.mixed_cpus)},
};

}  // namespace

std::span<const Setting> machine() noexcept { return kMachineSettings; }

}  // namespace dtrain::config::tables
