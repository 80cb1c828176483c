#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/store/run_files.h"
#include "dtrain/config/interval.h"
#include "dtrain/config/layout.h"
#include "dtrain/config/machine.h"
#include "dtrain/config/resolve.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/data/split.h"
#include "provenance.h"
#include "ranks.h"
#include "runtime_library.h"
#include "start_paths.h"

namespace dtrain::app {
namespace {

// Settings of axes that have one rank, and of ranks that are threads where they are processes.
void warn_about_axes(const config::LayoutConfig& layout) {
  const config::LayoutConfig plain;
  const auto warn_if = [](bool is_set, std::string_view flag, std::string_view needs) {
    if (is_set) base::log_warning("{} has no effect {}", flag, needs);
  };
  constexpr std::string_view kNeedsStages = "without several stages: --strategy pp, mp or 3d";
  warn_if(layout.pp == 1 && layout.schedule_pp != plain.schedule_pp, "--schedule-pp", kNeedsStages);
  warn_if(layout.pp == 1 && !layout.pp_split.empty(), "--pp-split", kNeedsStages);
  warn_if(layout.tp == 1 && layout.tp_vocab, "--tp-vocab",
          "without several tensor-parallel ranks: --strategy tp or 3d");
  warn_if(layout.strategy != "3d" && layout.data_axis != plain.data_axis, "--data-axis",
          "without --strategy 3d");
  if (config::strategy_of(layout).is_local()) return;
  constexpr std::string_view kNeedsThreads = "without --strategy dp or mp";
  warn_if(layout.local_ranks != 0, "--local-ranks", kNeedsThreads);
  warn_if(!layout.devices.empty(), "--devices", kNeedsThreads);
}

// Settings of the sharded data axis, where nothing is sharded or gathered.
void warn_about_sharding(const config::Config& config) {
  const config::LayoutConfig& layout = config.layout;
  const config::LayoutConfig plain;
  const auto warn_unless = [](bool has_effect, bool is_set, std::string_view flag,
                              std::string_view needs) {
    if (is_set && !has_effect) base::log_warning("{} has no effect {}", flag, needs);
  };
  const config::Sharding sharding = config::sharding_of(layout);
  const bool shards = layout.shard_size > 1;
  const bool gathers = shards && config::gathers_units(sharding);
  const std::string_view axis = config::data_axis_of(layout);
  constexpr std::string_view kNeedsShards = "without --strategy fsdp or zero on several ranks";
  warn_unless(shards, layout.wrap != plain.wrap, "--wrap", kNeedsShards);
  warn_unless(axis == "zero", layout.zero_stage != plain.zero_stage, "--zero-stage",
              "without --strategy zero");
  warn_unless(axis == "fsdp", layout.fsdp_sharding != plain.fsdp_sharding, "--fsdp-sharding",
              "without --strategy fsdp");
  warn_unless(gathers && config.model.tie_levels, layout.tied_reshard != plain.tied_reshard,
              "--tied-reshard", "unless tied levels are sharded: --strategy fsdp, --tie-levels on");
  warn_unless(config.machine.device != "cpu",
              config.machine.offload == "optimizer" || config.machine.offload == "all",
              "--offload " + config.machine.offload,
              "on a CPU, whose memory holds everything anyway; disk:DIR does");
}

// Settings of what is gathered, and when.
void warn_about_gathers(const config::Config& config) {
  const config::LayoutConfig& layout = config.layout;
  const config::LayoutConfig plain;
  const bool gathers = layout.shard_size > 1 && config::gathers_units(config::sharding_of(layout));
  const bool frees_after_use = config::sharding_of(layout) == config::Sharding::parameters;
  const bool prefetches_back = layout.backward_prefetch != "none" && frees_after_use;
  const auto why_not = [&](bool is_backward) -> std::string_view {
    if (!gathers)
      return "unless parameters are sharded: --strategy fsdp, or zero with --zero-stage 3";
    if (layout.wrap == "none") return "with --wrap none: there is one unit";
    if (is_backward && !frees_after_use) return "with --fsdp-sharding grad-op: all units stay";
    return {};
  };
  const auto warn_if = [](std::string_view why, bool is_set, std::string_view flag) {
    if (is_set && !why.empty()) base::log_warning("{} has no effect {}", flag, why);
  };
  std::string_view forward = why_not(false);
  if (forward.empty() && layout.limit_gathers == 1) forward = "with --limit-gathers 1";
  std::string_view limit = why_not(false);
  if (limit.empty() && !prefetches_back && !layout.forward_prefetch) {
    limit = "where nothing is prefetched";
  }
  warn_if(why_not(true), layout.backward_prefetch != plain.backward_prefetch,
          "--backward-prefetch");
  warn_if(forward, layout.forward_prefetch, "--forward-prefetch");
  warn_if(limit, layout.limit_gathers != plain.limit_gathers, "--limit-gathers");
}

// Counts of ranks and microbatches whose sums one rank would add in another order.
void warn_about_order(const config::Config& config) {
  const std::int64_t grad_accum = config.batch.grad_accum;
  if (config.machine.reduction != "ordered" ||
      config::keeps_order_of_one_rank(config.layout, grad_accum)) {
    return;
  }
  config::LayoutConfig local = config.layout;
  local.accumulate = "local";
  base::log_warning(
      "{} ranks with --grad-accum {}{} add gradients in an order of their own, so bits differ from "
      "other layouts: {}use powers of two (docs/determinism.md)",
      config.layout.dp, grad_accum,
      config.layout.fsdp_sharding == "hybrid"
          ? fmt::format(" and --shard-size {}", config.layout.shard_size)
          : "",
      config::keeps_order_of_one_rank(local, grad_accum) ? "set --accumulate local, or " : "");
}

// Settings of the machine that another one makes idle, or that have a price.
void warn_about_machine(const config::Config& config) {
  const config::MachineConfig& machine = config.machine;
  const bool has_limit = config::parse_bytes(machine.memory_limit).value() > 0;
  const config::RecomputeSetting recompute = config::parse_recompute(machine.recompute).value();
  if (recompute.kind == config::RecomputeSetting::Kind::automatic && !has_limit) {
    base::log_warning("--recompute auto has no effect without --memory-limit");
  }
  if (recompute.kind == config::RecomputeSetting::Kind::every &&
      recompute.group_size > config.model.levels) {
    base::log_warning("--recompute {}: there are {} levels, which run again as one group",
                      machine.recompute, config.model.levels);
  }
  const bool is_low = machine.dtype == "bfloat16" || machine.dtype == "float16";
  if (is_low && machine.param_dtype != machine.dtype) {
    base::log_warning("--dtype {} has no effect with --param-dtype {}, which says what is computed",
                      machine.dtype, machine.param_dtype);
  }
  if (machine.buffer_dtype == "bfloat16" || machine.buffer_dtype == "float16") {
    base::log_warning("--buffer-dtype {}: positions lose precision; float32 costs next to nothing",
                      machine.buffer_dtype);
  }
}

// Settings of an optimizer that another one does not read.
void warn_about_optimizer(const config::TrainConfig& train) {
  const config::TrainConfig plain;
  const auto warn_if = [&](bool is_set, std::string_view flag) {
    if (is_set) base::log_warning("{} has no effect with --optimizer {}", flag, train.optimizer);
  };
  const bool is_sgd = train.optimizer == "sgd";
  warn_if(is_sgd && train.beta1 != plain.beta1, "--beta1");
  warn_if(is_sgd && train.beta2 != plain.beta2, "--beta2");
  warn_if(is_sgd && train.eps != plain.eps, "--eps");
  warn_if(!is_sgd && train.momentum != plain.momentum, "--momentum");
}

void warn_about_validation(const config::Config& config, bool has_validation) {
  if (config.report.eval_every > 0 && !has_validation) {
    base::log_warning("--eval-every {} has no effect without --val-data or --val-fraction",
                      config.report.eval_every);
  }
  if (config.data.val_fraction > 0.5) {
    base::log_warning("--val-fraction {} keeps more of --data for validation than it trains on",
                      config.data.val_fraction);
  }
}

void warn_without_effect(const config::Config& config, bool has_validation) {
  const config::CheckpointConfig& checkpoint = config.checkpoint;
  warn_about_axes(config.layout);
  warn_about_sharding(config);
  warn_about_gathers(config);
  warn_about_order(config);
  warn_about_machine(config);
  warn_about_optimizer(config.train);
  warn_about_validation(config, has_validation);
  if (config.train.min_lr > 0 && config.train.schedule == "constant") {
    base::log_warning("--min-lr {} has no effect with --schedule constant", config.train.min_lr);
  }
  if (config.train.decay_steps > 0 && config.train.schedule != "wsd") {
    base::log_warning("--decay-steps {} has no effect with --schedule {}", config.train.decay_steps,
                      config.train.schedule);
  }
  if (config.train.max_skipped != config::TrainConfig{}.max_skipped &&
      config.train.on_nonfinite == "stop" && !config::needs_loss_scaling(config.machine)) {
    base::log_warning("--max-skipped {} has no effect without --on-nonfinite skip or float16",
                      config.train.max_skipped);
  }
  if (checkpoint.strict_resume && checkpoint.resume == "none") {
    base::log_warning("--strict-resume has no effect without --resume");
  }
  if (config.report.eval_sequences != config::ReportConfig{}.eval_sequences && !has_validation) {
    base::log_warning("--eval-sequences {} has no effect without --val-data or --val-fraction",
                      config.report.eval_sequences);
  }
  if (!config::parse_interval(checkpoint.every)->is_never()) return;
  if (checkpoint.keep_every > 0) {
    base::log_warning("--keep-every {} has no effect without --checkpoint-every",
                      checkpoint.keep_every);
  }
  if (checkpoint.write_limit_mbps > 0) {
    base::log_warning("--checkpoint-write-limit {} has no effect without --checkpoint-every",
                      checkpoint.write_limit_mbps);
  }
}

// For a run that goes on with its own settings, `origin` is its config.json; else empty.
data::Split open_data(const config::Config& config, const std::string& origin) {
  try {
    return data::open_split(data::split_options(config));
  } catch (const base::Error& error) {
    if (origin.empty()) throw;
    base::fail(error.kind(),
               "{} (as {} says; for data that was moved give --config {} --data FILE)",
               error.what(), origin, origin);
  }
}

void check_data(const Configured& configured, bool may_warn) {
  const config::Config& config = configured.config;
  if (config.data.train.empty()) {
    const std::string& resume = config.checkpoint.resume;
    if (resume != "auto" && resume != "none") {
      base::fail(base::ErrorKind::usage,
                 "--data is missing: a run goes on with its own settings by --run-dir RUN --resume "
                 "auto; a new run that begins at --resume {} needs --data and its settings",
                 resume);
    }
    const bool goes_on = resume == "auto" && !config.run.dir.empty();
    if (!goes_on) {
      base::fail(base::ErrorKind::usage, "--data is missing: name a token file or a text");
    }
    base::fail(
        base::ErrorKind::usage,
        "--resume auto: {} holds no config.json that says what to train: check --run-dir, or "
        "give --data and the other settings of the run",
        config.run.dir);
  }
  const data::Split split =
      open_data(config, configured.continues ? config.run.dir + "/config.json" : "");
  if (may_warn) warn_without_effect(config, split.validation.size() > 0);
}

// Where nothing was said about the model, what it is, and where larger ones are.
void note_default_model(const config::ModelConfig& model) {
  const config::ModelConfig plain;
  const bool is_default = model.levels == plain.levels && model.width == plain.width &&
                          model.heads == plain.heads && model.neurons == plain.neurons;
  if (!is_default) return;
  base::log_info(
      "without --config this trains a small model, for minutes on a laptop; larger ones: --config "
      "configs/experiments/small.json, 25m.json or prod.json");
}

}  // namespace

int run_train(const Arguments& arguments) {
  const auto configured = configure(config::Command::train, arguments);
  if (!configured) return 0;
  const config::Config& config = configured->config;
  const bool first = configured->env.rank == 0;
  // One rank looks at the run folder: the others might see what it has begun to write.
  if (first) {
    check_for_all_ranks([&] {
      config::check_run_folder(config);
      if (!config.run.dir.empty()) {
        checkpoint::store::check_run_files(config.run.dir, config::replacing_flag(config));
      }
      check_start_paths(config);
    });
  }
  check_data(*configured, first);
  const RuntimeLibrary library = RuntimeLibrary::open();
  if (first && !configured->has_file) note_default_model(config.model);
  const bool has_threads = config::strategy_of(config.layout).is_local();
  const std::int64_t ranks = has_threads ? config.layout.local_ranks : configured->env.world_size;
  return library.run({config::Command::train, config, {configured->asked, provenance(ranks)}});
}

}  // namespace dtrain::app
