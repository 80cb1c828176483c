#include "dtrain/config/resolve/resolve.h"

#include <algorithm>
#include <cmath>

#include "dtrain/base/error.h"
#include "dtrain/base/text/nearest.h"
#include "dtrain/config/family.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr const char* kGpu = "cuda";
// The measured defaults: docs/guide/benchmarks.md.
constexpr double kRate = 3e-3;             // at kRateWidth
constexpr double kRateWidth = 64;          // it falls with the root of larger widths
constexpr double kFall = 10;               // a falling schedule ends at its peak over this
constexpr std::int64_t kWarmupShare = 20;  // one in so many steps

bool supports(const Launch& launch, std::string_view kind) {
  return std::ranges::find(launch.devices, kind) != launch.devices.end();
}

void resolve_device(DeviceName& device, const Launch& launch) {
  if (device.kind == "auto") {
    const bool each_has_one = launch.num_gpus >= std::max<std::int64_t>(1, launch.local_world_size);
    device.kind = each_has_one && supports(launch, kGpu) ? kGpu : "cpu";
  }
  if (device.is_cpu() || supports(launch, device.kind)) return;
  std::string choices = "auto, cpu";
  for (const std::string& kind : launch.devices) choices += ", " + kind;
  fail(ErrorKind::usage, "--device: found \"{}\", but it must be one of {}{}", device, choices,
       !supports(launch, kGpu) ? " (cuda needs libdtrain_cuda.so: run scripts/build.sh dtrain_cuda)"
       : device.kind == "gpu"  ? base::did_you_mean(DeviceName{kGpu, device.index}.text())
                               : "");
}

void resolve_machine(MachineConfig& machine, const LayoutConfig& layout, const Launch& launch) {
  const bool is_local = strategy_of(layout).is_local();  // otherwise --devices has no effect
  const bool lists_gpus = is_local && layout.devices.names_gpus();
  if (lists_gpus && machine.device.kind == "cpu") {
    fail(ErrorKind::usage, "--devices {} names a GPU, but --device is cpu: omit one of them",
         layout.devices);
  }
  if (lists_gpus && machine.device.kind == "auto") machine.device.kind = kGpu;
  resolve_device(machine.device, launch);
  if (is_local && machine.device.index && layout.devices.devices.empty()) {
    fail(ErrorKind::usage,
         "--device {} names one device, but each rank of --strategy {} needs its own: use --device "
         "{}, or --devices with a number for each rank, as in 0,1",
         machine.device, layout.strategy, machine.device.kind);
  }
  if (machine.reduction == Reduction::automatic) {
    machine.reduction = machine.device.is_cpu() ? Reduction::ordered : Reduction::fast;
  }
  if (machine.offload.kind == Offload::Kind::disk && !machine.device.is_cpu()) {
    fail(ErrorKind::usage,
         "--offload {} requires the optimizer to run on a CPU, but --device is {}: use --offload "
         "all",
         machine.offload, machine.device);
  }
  machine.backend = resolve_backend(machine.backend, layout, launch);
  if (machine.threads != 0) return;
  const std::int64_t share =
      launch.usable_cores / std::max<std::int64_t>(1, launch.local_world_size);
  machine.threads =
      launch.threads_hint != 0 ? launch.threads_hint : std::max<std::int64_t>(1, share);
}

// The setting that has no fused kernels; empty if they are available.
std::string fused_kernels_obstacle(const ModelConfig& model, const MachineConfig& machine) {
  if (family_of(model).fused_kernels == FusedKernels::none)
    return fmt::format("--model {}", model.name);
  if (!machine.device.is_cpu()) return fmt::format("--device {}", machine.device);
  return machine.param_dtype == Dtype::float16 ? "float16" : "";
}

// A graph replays local computation at fixed addresses, without communication. On a CPU, which has
// no graphs, --compile means fused kernels.
void check_compile(const Config& config) {
  if (!config.machine.compile) return;
  const auto refuse = [](const std::string& setting, std::string_view reason) {
    fail(ErrorKind::usage, "--compile cannot be combined with {}: {}; omit one of them", setting,
         reason);
  };
  const LayoutConfig& layout = config.layout;
  if (config.machine.device.is_cpu()) {
    if (config.machine.kernels == Kernels::fused) return;
    const std::string obstacle = fused_kernels_obstacle(config.model, config.machine);
    refuse(obstacle.empty() ? "--kernels plain" : obstacle,
           "on a CPU --compile means fused kernels");
  }
  if (layout.tp > 1) {
    refuse(fmt::format("--tp {}", layout.tp), "ranks communicate within a block");
  }
  if (layout.pp > 1) {
    refuse(fmt::format("--pp {}", layout.pp), "stages send from buffers without fixed addresses");
  }
  if (config.machine.offload.kind == Offload::Kind::all) {
    refuse(fmt::format("--offload {}", config.machine.offload),
           "parameters have no fixed addresses");
  }
}

void resolve_training(TrainConfig& train) {
  train.warmup_steps = warmup_steps_of(train);
  const bool decays_at_the_end = train.schedule == ScheduleShape::warmup_stable_decay;
  if (decays_at_the_end && train.decay_steps == 0) {
    train.decay_steps = std::min((train.steps + 9) / 10, train.steps - *train.warmup_steps);
  }
  if (decays_at_the_end && *train.warmup_steps + train.decay_steps > train.steps) {
    fail(ErrorKind::usage,
         "--warmup-steps {} plus --decay-steps {} exceeds --steps {}: lower one of them",
         *train.warmup_steps, train.decay_steps, train.steps);
  }
}

void resolve_rates(Config& config) {
  TrainConfig& train = config.train;
  if (!train.lr) train.lr = default_learning_rate(config.model.width);
  const bool falls = train.schedule != ScheduleShape::constant;
  if (falls && !train.min_lr) train.min_lr = default_min_lr(*train.lr);
}

void check_training(const Config& config) {
  const TrainConfig& train = config.train;
  family_of(config.model).check(config.model);
  if (train.schedule != ScheduleShape::constant && *train.min_lr > *train.lr) {
    fail(ErrorKind::usage,
         "--min-lr {} is above --lr {}: a {} schedule can only decrease; give --min-lr auto",
         *train.min_lr, *train.lr, train.schedule);
  }
  const bool rounds_eps =
      train.optimizer == UpdateRule::adamw && config.machine.dtype != Dtype::float64;
  if (rounds_eps && static_cast<float>(train.eps) == 0) {
    fail(ErrorKind::usage,
         "--eps {} rounds to 0 in float32, the dtype of the optimizer's state: give more than "
         "1e-45, or --dtype float64",
         train.eps);
  }
  if (!config.data.validation.empty() && config.data.val_fraction > 0) {
    fail(ErrorKind::usage, "--val-data {} and --val-fraction {} exclude each other: omit one",
         config.data.validation, config.data.val_fraction);
  }
}

void check_start(const Config& config) {
  const Resume& resume = config.checkpoint.resume;
  if (config.run.overwrite && !resume.is_none()) {
    fail(
        ErrorKind::usage,
        "--overwrite and --resume {} exclude each other: one starts a new run, the other continues "
        "one; omit one of them",
        resume);
  }
  if (resume.text().empty()) {
    fail(ErrorKind::usage, "--resume is empty: give auto, none or the path of a checkpoint");
  }
  if (!config.checkpoint.new_data) return;
  if (resume.is_none()) {
    fail(ErrorKind::usage,
         "--new-data needs --resume: it keeps the model and optimizer of a checkpoint; give "
         "--resume auto or --resume PATH, or omit it to begin at step 0");
  }
  if (!config.checkpoint.init_from.empty()) {
    fail(ErrorKind::usage,
         "--new-data and --init-from {} exclude each other: one keeps the checkpoint's optimizer "
         "and step, the other starts from weights only; omit one of them",
         config.checkpoint.init_from);
  }
}

void resolve_kernels(const ModelConfig& model, MachineConfig& machine) {
  const std::string obstacle = fused_kernels_obstacle(model, machine);
  if (machine.kernels == Kernels::fused && !obstacle.empty()) {
    fail(ErrorKind::usage,
         "--kernels fused cannot be combined with {}: fused kernels compute on the CPU only, in "
         "float32, float64 and bfloat16; use --kernels plain",
         obstacle);
  }
  if (machine.kernels == Kernels::automatic) {
    machine.kernels = obstacle.empty() ? Kernels::fused : Kernels::plain;
  }
  if (machine.recompute.kind != RecomputeSetting::Kind::gates) return;
  if (family_of(model).fused_kernels != FusedKernels::layers) {
    fail(ErrorKind::usage,
         "--recompute gates cannot be combined with --model {}: only bdh has it; use --recompute "
         "level",
         model.name);
  }
  if (machine.kernels != Kernels::fused) {
    const std::string reason =
        obstacle.empty() ? "" : fmt::format(" (not available with {})", obstacle);
    fail(ErrorKind::usage, "--recompute gates needs --kernels fused{}: use --recompute level",
         reason);
  }
}

void check_prompts(const GenerateConfig& generate) {
  const int given = static_cast<int>(!generate.prompt.empty()) +
                    static_cast<int>(!generate.prompt_file.empty()) +
                    static_cast<int>(!generate.prompts.empty());
  if (given <= 1) return;
  fail(ErrorKind::usage,
       "--prompt, --prompt-file and --prompts exclude each other: give one of them");
}

void check_verified(const VerifyConfig& verify) {
  if (verify.trajectory.empty() != verify.name.empty()) {
    fail(ErrorKind::usage, "--trajectory and --name require each other: give both or neither");
  }
  const bool has_all =
      !verify.expected.empty() && !verify.trajectory.empty() && !verify.text.empty();
  if (!verify.hugging_face.empty() && !has_all) {
    fail(ErrorKind::usage,
         "--huggingface {} needs --expected FILE, --trajectory FILE, --name NAME and --text FILE",
         verify.hugging_face);
  }
  if (verify.hugging_face.empty() && !(verify.expected.empty() && verify.text.empty())) {
    fail(ErrorKind::usage, "--expected and --text need --huggingface FOLDER");
  }
  if (!verify.hugging_face.empty() && !verify.golden.empty()) {
    fail(ErrorKind::usage, "--golden and --huggingface exclude each other: give one of them");
  }
}

}  // namespace

double default_learning_rate(std::int64_t width) {
  return kRate * std::sqrt(std::min(1.0, kRateWidth / static_cast<double>(width)));
}

double default_min_lr(double lr) { return lr / kFall; }

std::int64_t warmup_steps_of(const TrainConfig& train) {
  const std::int64_t steps = train.warmup_steps.value_or(train.steps / kWarmupShare);
  return steps > train.steps ? train.steps / 2 : steps;
}

Dtype wide_dtype(const MachineConfig& machine) {
  return machine.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
}

void resolve_dtypes(MachineConfig& machine) {
  const Dtype wide = wide_dtype(machine);
  struct Role {
    std::string_view flag;
    Dtype& dtype;
    Dtype automatic;
  };
  const Role roles[] = {{"--param-dtype", machine.param_dtype, machine.dtype},
                        {"--reduce-dtype", machine.reduce_dtype, wide},
                        {"--buffer-dtype", machine.buffer_dtype, wide}};
  for (const Role& role : roles) {
    if (role.dtype == Dtype::automatic) role.dtype = role.automatic;
    if ((role.dtype == Dtype::float64) != (machine.dtype == Dtype::float64)) {
      fail(ErrorKind::usage,
           "{} {} cannot be combined with --dtype {}: float64 is for all dtypes or none", role.flag,
           role.dtype, machine.dtype);
    }
  }
}

bool needs_loss_scaling(const MachineConfig& machine) {
  return machine.param_dtype == Dtype::float16 || machine.reduce_dtype == Dtype::float16;
}

Launch resolve_computation(Config& config, const Launch& launch) {
  const Launch ranks = with_local_ranks(config.layout, launch);
  resolve_layout(config.layout, ranks);
  resolve_machine(config.machine, config.layout, ranks);
  if (config.layout.strategy == Strategy::automatic) check_auto_device(config.machine.device);
  resolve_dtypes(config.machine);
  resolve_kernels(config.model, config.machine);
  return ranks;
}

// The start table, the reproducibility class and checkpoints thus show the attention that is
// computed.
void resolve_attention(Config& config) {
  const MachineConfig& machine = config.machine;
  AttentionSetting& attention = config.machine.attention;
  const Family& family = family_of(config.model);
  if (family.attention_chunk == nullptr) {
    if (attention.kind != AttentionSetting::Kind::chunked) return;
    fail(ErrorKind::usage, "--model {1} does not support --attention {0}: use --attention full",
         attention, config.model.name);
  }
  if (attention.kind != AttentionSetting::Kind::automatic) return;
  const bool is_fused = machine.kernels == Kernels::fused;
  if (!is_fused && machine.device.is_cpu()) return;  // plain kernels serve as the oracle
  const DeviceRates rates = device_rates(machine);
  const std::int64_t chunk =
      family.attention_chunk(config.model, {.seq_len = config.data.seq_len,
                                            .rates = is_fused ? nullptr : &rates,
                                            .value_bytes = bytes_of(machine.param_dtype)});
  const auto kind = chunk > 0 ? AttentionSetting::Kind::chunked : AttentionSetting::Kind::full;
  attention = {.kind = kind, .chunk = chunk};
}

Config resolve(Command command, Config config, const Launch& launch) {
  const bool is_one_process =
      command != Command::train && command != Command::verify && command != Command::doctor;
  if (is_one_process && launch.world_size != 1) {
    fail(ErrorKind::usage, "dtrain {} was launched with {} ranks, but it runs as one process",
         name_of(command), launch.world_size);
  }
  std::string& run_dir = config.run.dir;
  while (run_dir.size() > 1 && run_dir.ends_with('/')) run_dir.pop_back();
  if (command == Command::plan) return config;  // which is resolved separately for each layout
  const bool is_auto_layout = config.layout.strategy == Strategy::automatic;
  const Launch ranks = resolve_computation(config, launch);
  resolve_sharding(config.layout, config.machine, ranks);
  check_compression(config.layout, config.machine);
  if (command == Command::train || command == Command::doctor) {
    if (is_auto_layout) {
      resolve_auto_layout_batch(config.batch, ranks.world_size);
    } else {
      resolve_batch(config.batch, config.layout);
    }
    resolve_rates(config);
    check_training(config);
    resolve_training(config.train);
    resolve_attention(config);
    check_start(config);
    check_compile(config);
  }
  if (command == Command::evaluate) {
    resolve_batch(config.batch, config.layout);
    resolve_attention(config);
  }
  // The fixture's rows are the global batch; the microbatch is derived from it.
  if (command == Command::verify && config.batch.grad_accum == 0) config.batch.grad_accum = 1;
  check_pipeline(config, command == Command::train);
  check_prompts(config.generate);
  if (command == Command::verify) check_verified(config.verify);
  return config;
}

}  // namespace dtrain::config
