// Helpers for declaring rows of the settings table (schema/tables/, and each family's settings).
#pragma once

#include <limits>
#include <optional>
#include <utility>

#include "dtrain/config/family.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/schema/schema.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config::rows {

/// The subcommands that take a setting; combined with |.
inline constexpr CommandSet kTrain = static_cast<unsigned>(Command::train);
inline constexpr CommandSet kGenerate = static_cast<unsigned>(Command::generate);
inline constexpr CommandSet kVerify = static_cast<unsigned>(Command::verify);
inline constexpr CommandSet kExport = static_cast<unsigned>(Command::export_checkpoint);
inline constexpr CommandSet kImport = static_cast<unsigned>(Command::import_checkpoint);
inline constexpr CommandSet kPlan = std::bit_floor(static_cast<unsigned>(Command::plan));
inline constexpr CommandSet kEvaluate = static_cast<unsigned>(Command::evaluate);
// Commands that compute with a model.
inline constexpr CommandSet kModel = kTrain | kGenerate | kVerify | kEvaluate;
inline constexpr CommandSet kEngine = kTrain | kVerify;
inline constexpr CommandSet kAll = kModel | kExport | kImport;

constexpr AllowedValues between(double lowest, double highest) {
  return {.range = {Range::Bounds::closed, lowest, highest}};
}
constexpr AllowedValues from_to_below(double lowest, double highest) {
  return {.range = {Range::Bounds::open_above, lowest, highest}};
}
constexpr AllowedValues above(double lowest, double highest) {
  return {.range = {Range::Bounds::open_below, lowest, highest}};
}
constexpr AllowedValues at_least(double lowest) {
  return between(lowest, std::numeric_limits<double>::max());
}
constexpr AllowedValues one_of(std::span<const Choice> choices) { return {.choices = choices}; }
constexpr AllowedValues syntax(std::string_view text) { return {.syntax = text}; }

inline constexpr Repeatable kRepeatable;
constexpr FormerName formerly(std::string_view key, std::string_view flag) { return {key, flag}; }

template <typename Value>
std::optional<Value> read(std::string_view text) {
  if constexpr (ParsedValue<Value>) return Value::parse(text);
  if constexpr (std::is_same_v<Value, std::string>) return std::string(text);
  if constexpr (EnumSetting<Value>) {
    for (const Choice& choice : choices_of(Value{})) {
      if (choice.name == text) return static_cast<Value>(choice.value);
    }
  }
  return std::nullopt;
}

/// Accessors of the member that `pick` returns, and the conversions of its type.
template <typename Pick>
constexpr Field field_of(Pick pick) {
  using Value = std::remove_reference_t<decltype(pick(std::declval<Config&>()))>;
  if constexpr (EnumSetting<Value> || ParsedValue<Value> || std::is_same_v<Value, std::string>) {
    return TextField{
        .read =
            [](std::string_view text, Config& config) {
              std::optional<Value> value = read<Value>(text);
              if (value) Pick{}(config) = *std::move(value);
              return value.has_value();
            },
        .text = [](const Config& config) { return fmt::format("{}", Pick{}(config)); }};
  } else {
    return FieldOf<Value>(pick);
  }
}

template <typename Settings, typename Value>
Settings struct_of(Value Settings::*);

/// The accessor of a member of a family's settings: kFamilyField<&Settings::heads>.
template <auto member>
inline constexpr Field kFamilyField = field_of([](auto& config) -> auto& {
  return config.model.family.template get<decltype(struct_of(member))>().*member;
});

inline constexpr ResumeRule kFixed = [](const Config&, const Config&) { return OnResume::fixed; };
inline constexpr ResumeRule kReported = [](const Config&, const Config&) {
  return OnResume::reported;
};
inline constexpr ResumeRule kNeedsNewData = [](const Config&, const Config&) {
  return OnResume::needs_new_data;
};
inline constexpr ResumeRule kNotCompared = [](const Config&, const Config&) {
  return OnResume::not_compared;
};

template <const Requirement&... all>
inline constexpr Requirements kRequires{{&all...}};

template <const Requirement& requirement>
inline constexpr ResumeRule kReportedWith = [](const Config& now, const Config&) {
  return requirement.is_met(now) ? OnResume::reported : OnResume::free;
};

inline constexpr Condition kChangesBits = [](const Config&) { return true; };
constexpr Condition changes_bits(Condition when) { return when; }

}  // namespace dtrain::config::rows

// Conditions under which settings have an effect or change bits.
namespace dtrain::config::conditions {

inline constexpr Requirement kStages{"without several pipeline stages (--strategy pp, mp or 3d)",
                                     [](const Config& c) { return c.layout.pp > 1; }};
inline constexpr Requirement kTensorRanks{
    "without several tensor-parallel ranks (--strategy tp or 3d)",
    [](const Config& c) { return c.layout.tp > 1; }};
inline constexpr Requirement kThreeAxes{"without --strategy 3d", [](const Config& c) {
                                          return c.layout.strategy == Strategy::three_axes;
                                        }};
inline constexpr Requirement kLocalRanks{
    "without --strategy dp or mp (dtrun -n N starts N ranks)",
    [](const Config& c) { return strategy_of(c.layout).is_local(); }};
inline constexpr Requirement kSeveralProcesses{
    "without several rank processes", [](const Config& c) {
      return mesh_of(c.layout).num_ranks() > 1 && !strategy_of(c.layout).is_local();
    }};
inline constexpr Requirement kZero{"without --strategy zero", [](const Config& c) {
                                     return data_axis_of(c.layout) == DataAxisKind::zero;
                                   }};
inline constexpr Requirement kFsdp{"without --strategy fsdp", [](const Config& c) {
                                     return data_axis_of(c.layout) == DataAxisKind::fsdp;
                                   }};
inline constexpr Requirement kShards{"without --strategy fsdp or zero on several ranks",
                                     [](const Config& c) { return c.layout.shard_size > 1; }};
inline constexpr Requirement kGathers{
    "unless parameters are sharded: --strategy fsdp, or zero with --zero-stage 3",
    [](const Config& c) { return kShards.is_met(c) && gathers_units(sharding_of(c.layout)); }};
inline constexpr Requirement kSeveralUnits{
    "with --wrap none: there is one unit",
    [](const Config& c) { return c.layout.wrap.kind != WrapPolicy::Kind::none; }};
inline constexpr Requirement kFreesAfterUse{
    "with --fsdp-sharding grad-op, which keeps all units gathered",
    [](const Config& c) { return sharding_of(c.layout) == Sharding::parameters; }};
inline constexpr Requirement kSeveralGathers{
    "with --limit-gathers 1", [](const Config& c) { return c.layout.limit_gathers != 1; }};
inline constexpr Requirement kPrefetches{
    "with prefetching off", [](const Config& c) {
      const bool is_backward = c.layout.backward_prefetch != BackwardPrefetch::none;
      return c.layout.forward_prefetch || (is_backward && kFreesAfterUse.is_met(c));
    }};
inline constexpr Requirement kOffloads{
    "on a CPU, which keeps everything in host memory; use disk:DIR", [](const Config& c) {
      return !c.machine.offload.folder.empty() || !c.machine.device.is_cpu();
    }};
inline constexpr Condition kOnDevice = [](const Config& c) { return !c.machine.device.is_cpu(); };
inline constexpr Requirement kDevice{"on the CPU", kOnDevice};
inline constexpr Requirement kSockets{"with --backend {}",
                                      [](const Config& c) {
                                        const Backend backend = c.machine.backend;
                                        return kOnDevice(c) || backend == Backend::gloo ||
                                               backend == Backend::hier ||
                                               backend == Backend::automatic;
                                      },
                                      "machine.backend"};
inline constexpr Requirement kAttention{
    "with --model {}",
    [](const Config& c) { return family_of(c.model).attention_chunk != nullptr; }, "model.name"};
// With --attention auto, plain kernels on a CPU always compute full attention.
inline constexpr Condition kChoosesAttention = [](const Config& c) {
  return has_fused_layers(c) || c.machine.attention.kind != AttentionSetting::Kind::automatic;
};
// Fused layers give the same bits with any number of threads; LibTorch's products do not. The output
// layer of a split vocabulary has no fused kernel.
inline constexpr Condition kDependsOnThreads = [](const Config& c) {
  return !has_fused_layers(c) || c.layout.tp_vocab;
};
inline constexpr Requirement kRecomputeLimit{"without --memory-limit", [](const Config& c) {
                                               return c.machine.recompute.kind !=
                                                          RecomputeSetting::Kind::automatic ||
                                                      c.machine.memory_limit.count > 0;
                                             }};
inline constexpr Requirement kUsesDtype{"with --param-dtype {}, which sets the compute dtype",
                                        [](const Config& c) {
                                          return !is_16_bit(c.machine.dtype) ||
                                                 c.machine.param_dtype == c.machine.dtype;
                                        },
                                        "machine.param_dtype"};
inline constexpr Requirement kAdamW{
    "with --optimizer {}", [](const Config& c) { return c.train.optimizer == UpdateRule::adamw; },
    "train.optimizer"};
inline constexpr Requirement kSgd{
    "with --optimizer {}", [](const Config& c) { return c.train.optimizer == UpdateRule::sgd; },
    "train.optimizer"};
inline constexpr Requirement kFallingRate{
    "with --schedule {}",
    [](const Config& c) { return c.train.schedule != ScheduleShape::constant; }, "train.schedule"};
inline constexpr Requirement kDecay{
    "with --schedule {}",
    [](const Config& c) { return c.train.schedule == ScheduleShape::warmup_stable_decay; },
    "train.schedule"};
inline constexpr Condition kSkipsSpikes = [](const Config& c) {
  return c.train.spike_guard == SpikeGuard::skip;
};
inline constexpr Requirement kSkips{"without --on-nonfinite skip, --spike-guard skip or float16",
                                    [](const Config& c) {
                                      return c.train.on_nonfinite == OnNonfinite::skip ||
                                             kSkipsSpikes(c) || needs_loss_scaling(c.machine);
                                    }};
inline constexpr Requirement kGuardsSpikes{
    "without --spike-guard warn or skip",
    [](const Config& c) { return c.train.spike_guard != SpikeGuard::off; }};
inline constexpr Requirement kValidation{
    "without --val-data or --val-fraction",
    [](const Config& c) { return !c.data.validation.empty() || c.data.val_fraction > 0; }};
inline constexpr Requirement kEvaluatesOften{
    "without --eval-every", [](const Config& c) { return c.report.eval_every > 0; }};
inline constexpr Requirement kSamples{"without --sample-every",
                                      [](const Config& c) { return c.report.sample_every > 0; }};
inline constexpr Requirement kCheckpoints{
    "without --checkpoint-every", [](const Config& c) { return !c.checkpoint.every.is_never(); }};
inline constexpr Requirement kResume{
    "without --resume", [](const Config& c) { return !c.checkpoint.resume.is_none(); }};

inline constexpr Requirement kReplicas{"without several data-parallel ranks", [](const Config& c) {
                                         return c.layout.dp > c.layout.shard_size;
                                       }};
inline constexpr Condition kCompresses = [](const Config& c) {
  return kReplicas.is_met(c) && !c.machine.compress.is_none();
};
inline constexpr Requirement kCompression{"without --compress", kCompresses};

// Gradients are rounded to a narrower dtype before the ranks add them.
inline constexpr Condition kRoundsGradients = [](const Config& c) {
  return c.layout.dp > 1 && c.machine.reduce_dtype != wide_dtype(c.machine);
};
// The order in which gradients are added depends on the layout.
inline constexpr Condition kHasOwnSummationOrder = [](const Config& c) {
  const bool mixes_microbatches =
      kStages.is_met(c) && c.layout.schedule_pp.kind == PipelineKind::interleaved;
  return mixes_microbatches || kRoundsGradients(c) || kCompresses(c) ||
         !matches_single_rank_order(c.layout, c.batch.grad_accum);
};

}  // namespace dtrain::config::conditions
