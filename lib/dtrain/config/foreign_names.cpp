#include "dtrain/config/foreign_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <vector>

#include "dtrain/config/family.h"

namespace dtrain::config {
namespace {

constexpr std::string_view kPerRank = "per rank and backward pass; --global-batch is a step's";
constexpr std::string_view kOfDtrun = "it is an option of dtrun: dtrun -n RANKS -- dtrain ...";
constexpr std::string_view kFromLauncher =
    "leave it out: ranks learn their place from dtrun, torchrun, srun or mpirun";
constexpr std::string_view kNoService =
    "nothing is sent anywhere: see RUN/tensorboard, or dtrain report RUN";
constexpr std::string_view kNoWorkers = "leave it out: data is read ahead by itself";
constexpr std::string_view kPrepares =
    "it belongs to dtrain data prepare, which makes the token file that --data takes";
constexpr std::string_view kFloat16 = "--dtype float16";
constexpr std::string_view kBfloat16 = "--dtype bfloat16";
constexpr std::string_view kNamesDtype = "float32, bfloat16, float16 or float64";
constexpr std::string_view kSteps = "a number of steps, or a time as 10m";

// Names in PyTorch's examples and torchtitan, nanoGPT, llm.c, DeepSpeed, Megatron and Hugging Face.
constexpr ForeignName kForeignNames[] = {
    {"batch-size", "batch.microbatch", kPerRank},
    {"local-batch-size", "batch.microbatch", kPerRank},
    {"device-batch-size", "batch.microbatch", kPerRank},
    {"micro-batch-size", "batch.microbatch", kPerRank},
    {"train-micro-batch-size-per-gpu", "batch.microbatch", kPerRank},
    {"per-device-train-batch-size", "batch.microbatch", kPerRank},
    {"global-batch-size", "batch.global", "in sequences"},
    {"train-batch-size", "batch.global", "in sequences"},
    {"total-batch-size", "batch.global", "in sequences, not tokens"},
    {"gradient-accumulation-steps", "batch.grad_accum"},
    {"gradient-accumulation", "batch.grad_accum"},
    {"grad-accum-steps", "batch.grad_accum"},
    {"accumulate-grad-batches", "batch.grad_accum"},
    {"epoch", "train.epochs"},
    {"num-epochs", "train.epochs"},
    {"max-epochs", "train.epochs"},
    {"num-train-epochs", "train.epochs"},
    {"max-steps", "train.steps"},
    {"max-iters", "train.steps"},
    {"num-iterations", "train.steps"},
    {"train-iters", "train.steps"},
    {"iterations", "train.steps"},
    {"iters", "train.steps"},
    {"num-steps", "train.steps"},
    {"training-steps", "train.steps"},
    {"total-steps", "train.steps"},
    {"learning-rate", "train.lr"},
    {"max-lr", "train.lr"},
    {"min-learning-rate", "train.min_lr"},
    {"warmup-iters", "train.warmup_steps"},
    {"warmup-iterations", "train.warmup_steps"},
    {"num-warmup-steps", "train.warmup_steps"},
    {"lr-warmup-steps", "train.warmup_steps"},
    {"warmup-ratio", "train.warmup_steps", "in steps, not a share of them"},
    {"lr-decay-iters", "train.decay_steps"},
    {"lr-scheduler-type", "train.schedule"},
    {"lr-schedule", "train.schedule"},
    {"lr-decay-style", "train.schedule"},
    {"scheduler", "train.schedule"},
    {"wd", "train.weight_decay"},
    {"adam-beta1", "train.beta1"},
    {"adam-beta2", "train.beta2"},
    {"adam-eps", "train.eps"},
    {"adam-epsilon", "train.eps"},
    {"epsilon", "train.eps"},
    {"clip", "train.grad_clip"},
    {"clip-grad", "train.grad_clip"},
    {"clip-norm", "train.grad_clip"},
    {"max-grad-norm", "train.grad_clip"},
    {"max-norm", "train.grad_clip"},
    {"gradient-clipping", "train.grad_clip"},
    {"random-seed", "train.seed"},
    {"save-every", "checkpoint.every", kSteps},
    {"save-steps", "checkpoint.every", kSteps},
    {"save-interval", "checkpoint.every", kSteps},
    {"save-freq", "checkpoint.every", kSteps},
    {"checkpoint-interval", "checkpoint.every", kSteps},
    {"checkpoint-freq", "checkpoint.every", kSteps},
    {"ckpt-every", "checkpoint.every", kSteps},
    {"ckpt-interval", "checkpoint.every", kSteps},
    {"save-total-limit", "checkpoint.keep_last"},
    {"keep-latest-k", "checkpoint.keep_last"},
    {"ckpt", "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"load", "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"load-checkpoint", "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"resume-from", "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"resume-from-checkpoint", "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"restore", "checkpoint.resume", "auto, or the path of a checkpoint"},
    {"model-name-or-path", "checkpoint.init_from"},
    {"pretrained", "checkpoint.init_from"},
    {"eval-interval", "report.eval_every", "in steps"},
    {"eval-steps", "report.eval_every", "in steps"},
    {"eval-freq", "report.eval_every", "in steps"},
    {"val-every", "report.eval_every", "in steps"},
    {"val-loss-every", "report.eval_every", "in steps"},
    {"eval-batches", "report.eval_sequences", "in sequences, not batches"},
    {"eval-iters", "report.eval_sequences", "in sequences, not batches"},
    {"val-max-steps", "report.eval_sequences", "in sequences, not batches"},
    {"log-interval", "report.log_every", "in steps"},
    {"log-freq", "report.log_every", "in steps"},
    {"logging-steps", "report.log_every", "in steps"},
    {"log-steps", "report.log_every", "in steps"},
    {"out-dir", "run.dir"},
    {"output-dir", "run.dir"},
    {"output", "run.dir"},
    {"out", "run.dir"},
    {"save-dir", "run.dir"},
    {"log-dir", "run.dir"},
    {"work-dir", "run.dir"},
    {"data-path", "data.train"},
    {"dataset", "data.train"},
    {"dataset-path", "data.train"},
    {"train-data", "data.train"},
    {"train-data-path", "data.train"},
    {"train-file", "data.train"},
    {"input", "data.train"},
    {"input-bin", "data.train"},
    {"val-file", "data.validation"},
    {"validation-file", "data.validation"},
    {"input-val-bin", "data.validation"},
    {"block-size", "data.seq_len"},
    {"seq-length", "data.seq_len"},
    {"sequence-length", "data.seq_len"},
    {"context-length", "data.seq_len"},
    {"context-size", "data.seq_len"},
    {"max-seq-len", "data.seq_len"},
    {"max-length", "data.seq_len"},
    {"max-position-embeddings", "data.seq_len"},
    {"n-ctx", "data.seq_len"},
    {"layers", "model.levels"},
    {"depth", "model.levels"},
    {"n-layer", "model.levels"},
    {"n-layers", "model.levels"},
    {"num-layers", "model.levels"},
    {"num-hidden-layers", "model.levels"},
    {"dim", "model.width"},
    {"d-model", "model.width"},
    {"n-embd", "model.width"},
    {"n-embed", "model.width"},
    {"hidden-size", "model.width"},
    {"vocab-size", "model.vocab"},
    {"fp16", "machine.dtype", kFloat16},
    {"half", "machine.dtype", kFloat16},
    {"bf16", "machine.dtype", kBfloat16},
    {"amp", "machine.dtype", kBfloat16},
    {"precision", "machine.dtype", kNamesDtype},
    {"mixed-precision", "machine.dtype", kNamesDtype},
    {"torch-dtype", "machine.dtype", kNamesDtype},
    {"gradient-checkpointing", "machine.recompute", "--recompute level"},
    {"activation-checkpointing", "machine.recompute", "--recompute level"},
    {"activation-checkpoint.mode", "machine.recompute", "none, gates, level, every:K or auto"},
    {"tokenizer", "", kPrepares},
    {"tokenizer-path", "", kPrepares},
    {"field", "", kPrepares},
    {"dist-backend", "machine.backend"},
    {"num-threads", "machine.threads"},
    {"tp-size", "layout.tp", "with --strategy tp or 3d"},
    {"tensor-parallel-size", "layout.tp", "with --strategy tp or 3d"},
    {"tensor-model-parallel-size", "layout.tp", "with --strategy tp or 3d"},
    {"tensor-parallel-degree", "layout.tp", "with --strategy tp or 3d"},
    {"pp-size", "layout.pp", "with --strategy pp or 3d"},
    {"pipeline-parallel-size", "layout.pp", "with --strategy pp or 3d"},
    {"pipeline-model-parallel-size", "layout.pp", "with --strategy pp or 3d"},
    {"pipeline-parallel-degree", "layout.pp", "with --strategy pp or 3d"},
    {"pipeline-parallel-schedule", "layout.schedule_pp"},
    {"zero", "layout.zero_stage", "with --strategy zero"},
    {"sharding-strategy", "layout.fsdp_sharding", "with --strategy fsdp"},
    {"max-new-tokens", "generate.max_tokens"},
    {"num-tokens", "generate.max_tokens"},
    {"length", "generate.max_tokens"},
    {"temp", "generate.temperature"},
    {"topk", "generate.top_k"},
    {"start", "generate.prompt"},
    {"model-path", "generate.from"},
    {"checkpoint", "generate.from"},
    {"nproc-per-node", "", kOfDtrun},
    {"ngpus", "", kOfDtrun},
    {"num-gpus", "", kOfDtrun},
    {"num-processes", "", kOfDtrun},
    {"node-rank", "", kOfDtrun},
    {"master-addr", "", kOfDtrun},
    {"master-port", "", kOfDtrun},
    {"standalone", "", kOfDtrun},
    {"rdzv-backend", "", kOfDtrun},
    {"rdzv-endpoint", "", kOfDtrun},
    {"local-rank", "", kFromLauncher},
    {"rank", "", kFromLauncher},
    {"world-size", "", kFromLauncher},
    {"use-fsdp", "layout.strategy", "--strategy fsdp"},
    {"fsdp", "layout.strategy", "--strategy fsdp"},
    {"use-ddp", "layout.strategy", "--strategy ddp"},
    {"ddp", "layout.strategy", "--strategy ddp"},
    {"use-deepspeed", "layout.strategy", "--strategy zero"},
    {"deepspeed", "layout.strategy", "--strategy zero, or --deepspeed-config FILE"},
    {"fsdp-transformer-layer-cls-to-wrap", "layout.wrap", "block, size:N or none"},
    {"data-parallel-shard-degree", "layout.dp", "with --strategy fsdp"},
    {"data-parallel-replicate-degree", "layout.shard_size", "with --fsdp-sharding hybrid"},
    {"offload-optimizer", "machine.offload", "--offload optimizer"},
    {"cpu-offload", "machine.offload", "--offload all"},
    {"optim", "train.optimizer"},
    {"weight-decay-rate", "train.weight_decay"},
    {"decay-lr", "train.schedule", "constant, linear, cosine or wsd"},
    {"early-stopping-patience", "train.patience", "in evaluations"},
    {"load-best-model-at-end", "checkpoint.keep_best"},
    {"save-best", "checkpoint.keep_best"},
    {"sample-interval", "report.sample_every", "in steps"},
    {"enable-tensorboard", "report.tensorboard", "on unless --tensorboard off"},
    {"tensorboard-dir", "report.tensorboard", "RUN/tensorboard"},
    {"enable-profiling", "report.profile", "in steps"},
    {"report-to", "report.tensorboard", "and dtrain report RUN makes a page"},
    {"torch-compile", "machine.compile"},
    {"overwrite-output-dir", "run.overwrite"},
    {"wandb", "", kNoService},
    {"wandb-log", "", kNoService},
    {"wandb-project", "", kNoService},
    {"wandb-run-name", "", kNoService},
    {"num-workers", "", kNoWorkers},
    {"dataloader-num-workers", "", kNoWorkers},
    {"do-train", "", "leave it out: dtrain trains, and evaluates where there is validation data"},
    {"do-eval", "", "give --val-data or --val-fraction, and --eval-every"},
    {"eval-strategy", "report.eval_every", "in steps"},
    {"evaluation-strategy", "report.eval_every", "in steps"},
    {"save-strategy", "checkpoint.every", kSteps},
};

// "--N_Layer" -> "n-layer".
std::string normal_form(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string normal;
  for (const char c : name) {
    normal += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return normal;
}

}  // namespace

std::span<const ForeignName> foreign_names() noexcept {
  static const std::vector<ForeignName> all = [] {
    std::vector<ForeignName> names(std::begin(kForeignNames), std::end(kForeignNames));
    for (const Family* family : families()) {
      names.insert(names.end(), family->foreign_names.begin(), family->foreign_names.end());
    }
    return names;
  }();
  return all;
}

const ForeignName* find_foreign(std::string_view name) {
  std::string wanted = normal_form(name);
  auto found = std::ranges::find(foreign_names(), wanted, &ForeignName::name);
  // "training.max-steps": the group is theirs, too.
  const std::size_t dot = wanted.rfind('.');
  if (found == foreign_names().end() && dot != wanted.npos) {
    wanted.erase(0, dot + 1);
    found = std::ranges::find(foreign_names(), wanted, &ForeignName::name);
  }
  return found == foreign_names().end() ? nullptr : &*found;
}

std::string_view key_meant_in(Command command, std::string_view key) {
  constexpr std::string_view kOfModels[] = {"model.name", "checkpoint.resume",
                                            "checkpoint.init_from", "run.dir"};
  const bool is_of_model = std::ranges::find(kOfModels, key) != std::end(kOfModels);
  return is_of_model && command == Command::generate ? "generate.from" : key;
}

std::string foreign_advice(std::string_view name, NameKind kind, Command command) {
  const ForeignName* foreign = find_foreign(name);
  if (foreign == nullptr) return {};
  if (foreign->key.empty()) return fmt::format(": {}", foreign->note);
  const Setting* setting = find_key(key_meant_in(command, foreign->key));
  if (setting == nullptr || !setting->is_for(command)) return {};
  const bool has_note = !foreign->note.empty() && setting->key == foreign->key;
  return fmt::format(": here it is {}{}", kind == NameKind::flag ? setting->flag : setting->key,
                     has_note ? fmt::format(" ({})", foreign->note) : "");
}

}  // namespace dtrain::config
