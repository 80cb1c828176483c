// Settings of the machine: device, communication, dtypes, kernels, memory.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr double kMaxSeconds = 1e6;
constexpr double kMaxElements = 1LL << 40;

// Every GPU rounds alike, but not as a CPU does: only another kind of device is reported.
constexpr ResumeRule kDeviceKindRule = [](const Config& now, const Config& saved) {
  return now.machine.device.kind == saved.machine.device.kind ? OnResume::free : OnResume::reported;
};

constexpr Setting kMachineSettings[] = {
    {"machine.device", "--device", "auto|cpu|cuda|cuda:N", "",
     "where to compute; auto: a GPU where there is one", kModel, FIELD(machine.device),
     syntax("auto, cpu, cuda or cuda:N"), kDeviceKindRule},
    {"machine.share_devices", "--share-devices", "on|off", "",
     "let ranks that are processes compute on one GPU, for tests: slower than one rank", kEngine,
     FIELD(machine.share_devices), kRequires<kDevice, kSeveralProcesses>},
    {"machine.backend", "--backend", "NAME", "",
     "how ranks communicate; auto: none for a single process, local between its threads, shm on "
     "one node, hier (shm within a node, gloo across) on several, gloo where each rank has a node "
     "of its own or memory cannot be shared; mpi: Open MPI's, under mpirun",
     kEngine, FIELD(machine.backend), one_of(kBackends)},
    {"machine.dtype", "--dtype", "NAME", "", "arithmetic of the forward and backward pass", kModel,
     FIELD(machine.dtype), one_of(kDtypes), kReported, kRequires<kUsesDtype>},
    {"machine.param_dtype", "--param-dtype", "NAME", "",
     "dtype of the parameters that blocks read and compute with; auto: --dtype",
     kEngine | kEvaluate, FIELD(machine.param_dtype), one_of(kRoleDtypes), kReported, kChangesBits},
    {"machine.reduce_dtype", "--reduce-dtype", "NAME", "",
     "dtype of gradients on their way between ranks; auto: float32, or float64 with --dtype "
     "float64",
     kEngine, FIELD(machine.reduce_dtype), one_of(kRoleDtypes), kReported,
     changes_bits(kRoundsGradients)},
    {"machine.buffer_dtype", "--buffer-dtype", "NAME", "",
     "dtype of constant tables (positions); auto: float32, or float64 with --dtype float64",
     kEngine | kEvaluate, FIELD(machine.buffer_dtype), one_of(kRoleDtypes), kReported,
     kChangesBits},
    {"machine.threads", "--threads", "N", "threads",
     "threads per rank; 0: OMP_NUM_THREADS, else the usable cores shared by the ranks of a machine",
     kAll, FIELD(machine.threads), between(0, kMaxThreads), changes_bits(kDependsOnThreads)},
    {"machine.reduction", "--reduction", "NAME", "",
     "ordered: sums in one fixed order, equal bits on any number of ranks; fast: in any order; "
     "auto: ordered on the CPU, fast on GPUs",
     kEngine, FIELD(machine.reduction), one_of(kReductions), kReported},
    {"machine.kernels", "--kernels", "NAME", "",
     "how layers are computed; fused: one block with a backward pass of its own, on the CPU, in "
     "float32, float64 or bfloat16; plain: LibTorch's operators and its autograd; auto: fused "
     "where it exists",
     kEngine | kEvaluate, FIELD(machine.kernels), one_of(kKernels), kReported, kChangesBits},
    {"machine.attention", "--attention", "auto|full|chunked:C", "",
     "full: each position attends to all before it, at a cost that grows with the square of "
     "--seq-len; chunked:C: to those in its chunk of C, and to a state of all earlier chunks, at a "
     "cost that grows with --seq-len; auto: the cheaper with --kernels fused, the faster on a GPU, "
     "else full",
     kEngine | kEvaluate, FIELD(machine.attention),
     syntax("auto, full or chunked:C (positions, at least 1)"), kRequires<kAttention>, kReported,
     changes_bits(kChoosesAttention)},
    {"machine.matmul_precision", "--matmul-precision", "NAME", "",
     "precision of float32 matrix products on a GPU; tf32: faster, from factors rounded to 11 bits",
     kModel, FIELD(machine.matmul_precision), one_of(kMatmulPrecisions), kReported,
     kRequires<kDevice>, changes_bits(kOnDevice)},
    {"machine.compress", "--compress", "none|bf16|fp16|topk:RATIO|powersgd:RANK", "",
     "how replicas compress the gradients that they send: rounded to 16 bits, only the largest "
     "values, or low-rank factors; what is not sent is added to the next step's",
     kTrain, FIELD(machine.compress),
     syntax("none, bf16, fp16, topk:RATIO (above 0, below 1) or powersgd:RANK (1 to 1024)"),
     kRequires<kReplicas>, kReported, changes_bits(kCompresses)},
    {"machine.compress_warmup", "--compress-warmup", "N", "steps",
     "steps at the start that send uncompressed gradients", kTrain, FIELD(machine.compress_warmup),
     between(0, kMaxSteps), kRequires<kCompression>, kReported, changes_bits(kCompresses)},
    {"machine.compress_min_elements", "--compress-min-elements", "N", "elements",
     "a rank's part of a parameter with fewer elements is sent whole", kTrain,
     FIELD(machine.compress_min_elements), between(0, kMaxElements), kRequires<kCompression>,
     kReported, changes_bits(kCompresses)},
    {"machine.offload", "--offload", "none|optimizer|all|disk:DIR", "",
     "what to keep in pinned host memory instead of on the GPU: optimizer (moments), all (masters "
     "too); disk:DIR keeps masters and moments in files of this folder, on a CPU",
     kEngine, FIELD(machine.offload), syntax("none, optimizer, all or disk:DIR"),
     kRequires<kOffloads>},
    {"machine.interface", "--interface", "NAME,...", "",
     "network interface through which gloo and NCCL connect ranks, the first of these that a node "
     "has (default: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, else the route to rank 0)",
     kEngine, FIELD(machine.interface), kRequires<kSeveralProcesses, kSockets>},
    {"machine.comm_timeout", "--comm-timeout", "TIME", "seconds",
     "the longest any wait for another rank may take (90s, 10m, 1:30:00)", kEngine,
     FIELD(machine.comm_timeout_seconds), above(0, kMaxSeconds)},
    {"machine.recompute", "--recompute", "none|gates|level|every:K|auto", "",
     "run layers again in the backward pass instead of keeping what they computed: their neurons "
     "(gates, with fused kernels), all of each (level), in groups of K of which only the first "
     "input is kept (every:K), or as few as --memory-limit allows (auto)",
     kEngine, FIELD(machine.recompute),
     syntax("none, gates, level, every:K (layers, at least 1) or auto"),
     kRequires<kRecomputeLimit>},
    {"machine.compile", "--compile", "", "",
     "on a GPU: record the passes of each block as graphs and run these from the second step on; "
     "on a CPU: compute with fused kernels",
     kTrain, FIELD(machine.compile)},
    {"machine.memory_limit", "--memory-limit", "SIZE", "",
     "memory for the tensors of a rank (4G or 4GiB, 500MB): on a CPU a run that is predicted to "
     "need more does not start, a device gives no more; 0: what the machine has for all its ranks",
     kTrain, FIELD(machine.memory_limit),
     syntax("a size: 4G or 4GiB (of 1024), 500MB (of 1000), or bytes; 0 for none")},
    {"machine.mixed_cpus", "--mixed-cpus", "on|off", "",
     "let ranks run on CPUs of several types, whose rounding differs: every evaluation, sample and "
     "checkpoint makes their copies of weights and moments equal again",
     kEngine, FIELD(machine.mixed_cpus)},
};

}  // namespace

std::span<const Setting> machine() noexcept { return kMachineSettings; }

}  // namespace dtrain::config::tables
