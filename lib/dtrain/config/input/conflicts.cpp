#include "dtrain/config/input/conflicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config {
namespace {

std::string flag_text(const Setting& setting, const Config& config) {
  if (setting.is_switch()) return std::string(setting.flag);
  return fmt::format("{} {}", setting.flag, value_text(setting, config));
}

// A layer, which is a file or the flags, applied over the layers below. Parameters: see
// reset_conflicts.
class Layer {
 public:
  Layer(const Config& below, std::span<const Setting* const> given, Config& config)
      : below_(below), given_(given), config_(config) {}

  [[nodiscard]] const Config& below() const { return below_; }
  [[nodiscard]] Config& config() { return config_; }
  [[nodiscard]] bool gives(std::string_view key) const {
    return std::ranges::any_of(given_, [&](const Setting* setting) { return setting->key == key; });
  }
  // True if this layer does not set it and a layer below set it to another value than the default.
  [[nodiscard]] bool inherits(std::string_view key) const {
    return !gives(key) && !is_default(*find_key(key), config_);
  }
  // Resets an inherited setting to its default; no-op otherwise. winner: the key that replaces it.
  void reset(std::string_view key, std::string_view winner) {
    if (!inherits(key)) return;
    const Setting& setting = *find_key(key);
    add(winner, flag_text(setting, config_));
    static const Config plain;
    assign_json(setting, value_json(setting, plain), key, config_);
  }
  // Records that `winner` has changed an inherited setting to its value in config().
  void note_change(std::string_view key, std::string_view winner) {
    const Setting& setting = *find_key(key);
    add(winner,
        fmt::format("{} (now {})", flag_text(setting, below_), value_text(setting, config_)));
  }
  [[nodiscard]] std::vector<std::string> replaced() const {
    std::vector<std::string> lines;
    for (const auto& [winner, losers] : replaced_) {
      lines.push_back(fmt::format("{} replaces {}", flag_text(*find_key(winner), config_), losers));
    }
    return lines;
  }

 private:
  struct Replaced {
    std::string_view winner;
    std::string losers;
  };

  void add(std::string_view winner, const std::string& loser) {
    auto found = std::ranges::find(replaced_, winner, &Replaced::winner);
    if (found == replaced_.end()) found = replaced_.insert(replaced_.end(), {winner, {}});
    found->losers += (found->losers.empty() ? "" : ", ") + loser;
  }

  const Config& below_;
  std::span<const Setting* const> given_;
  Config& config_;
  std::vector<Replaced> replaced_;
};

using Keys = std::array<std::string_view, 4>;

/// Any of `given` resets `inherited` if `is_conflict` holds.
struct Conflict {
  Keys given;
  std::string_view inherited;
  Condition is_conflict;
};

bool lacks_fused_kernels(const Config& c) {
  const Dtype given = c.machine.param_dtype;
  const Dtype computed = given == Dtype::automatic ? c.machine.dtype : given;
  return !c.machine.device.is_cpu() || computed == Dtype::float16;
}

bool has_plain_kernels(const Config& c) {
  return c.machine.kernels == Kernels::plain || lacks_fused_kernels(c);
}

bool runs_gates_again(const Config& c) {
  return c.machine.recompute.kind == RecomputeSetting::Kind::gates &&
         (has_plain_kernels(c) || family_of(c.model).fused_kernels != FusedKernels::layers);
}

bool compiles_plain_kernels(const Config& c) {
  return c.machine.compile && c.machine.device.is_cpu() && has_plain_kernels(c);
}

bool offloads_to_disk_of_device(const Config& c) {
  return c.machine.offload.kind == Offload::Kind::disk && !c.machine.device.is_cpu();
}

bool lists_gpus_beside_cpu(const Config& c) {
  return c.layout.devices.names_gpus() && c.machine.device.kind == "cpu";
}

bool counts_devices_otherwise(const Config& c) {
  const auto devices = std::ssize(c.layout.devices.devices);
  return devices != 0 && c.layout.local_ranks != 0 && devices != c.layout.local_ranks;
}

template <Dtype MachineConfig::*role>
bool mixes_float64(const Config& c) {
  const Dtype dtype = c.machine.*role;
  return dtype != Dtype::automatic &&
         (dtype == Dtype::float64) != (c.machine.dtype == Dtype::float64);
}

bool rounds_twice(const Config& c) {
  using Kind = Compression::Kind;
  const Kind kind = c.machine.compress.kind;
  return is_16_bit(c.machine.reduce_dtype) && (kind == Kind::bfloat16 || kind == Kind::float16);
}

// A warm-up that does not fit is shortened, so it is no conflict.
bool decays_too_long(const Config& c) {
  const TrainConfig& train = c.train;
  const bool decays = train.schedule == ScheduleShape::warmup_stable_decay;
  return decays && train.epochs == 0 && warmup_steps_of(train) + train.decay_steps > train.steps;
}

bool begins_at_path(const Config& c) { return c.checkpoint.resume.kind == Resume::Kind::path; }

bool begins_new_data(const Config& c) {
  return c.checkpoint.new_data && !c.checkpoint.init_from.empty();
}

bool replaces_and_resumes(const Config& c) {
  return c.run.overwrite && !c.checkpoint.resume.is_none();
}

bool gives_prompt(const Config& c) { return !c.generate.prompt.empty(); }
bool gives_prompt_file(const Config& c) { return !c.generate.prompt_file.empty(); }
bool gives_prompts(const Config& c) { return !c.generate.prompts.empty(); }

constexpr Keys kDtypeKeys{"machine.dtype", "machine.param_dtype", "machine.reduce_dtype",
                          "machine.buffer_dtype"};
constexpr Keys kKernelKeys{"machine.kernels", "machine.dtype", "machine.param_dtype",
                           "machine.device"};
constexpr Keys kDecayKeys{"train.steps", "train.schedule", "train.warmup_steps"};
constexpr Conflict kConflicts[] = {
    {{"data.val_fraction"},
     "data.validation",
     [](const Config& c) { return c.data.val_fraction > 0; }},
    {{"data.validation"},
     "data.val_fraction",
     [](const Config& c) { return !c.data.validation.empty(); }},
    {{"data.train"},
     "data.val_fraction",
     [](const Config& c) { return mixture_or_file(c.data.train).size() > 1; }},
    {{"train.steps"}, "train.epochs", [](const Config&) { return true; }},
    {{"train.epochs"}, "train.steps", [](const Config& c) { return c.train.epochs > 0; }},
    {kDecayKeys, "train.decay_steps", decays_too_long},
    {{"checkpoint.init_from"}, "checkpoint.resume", begins_at_path},
    {{"checkpoint.resume"}, "checkpoint.init_from", begins_at_path},
    {{"checkpoint.init_from"}, "checkpoint.new_data", begins_new_data},
    {{"checkpoint.new_data"}, "checkpoint.init_from", begins_new_data},
    {{"run.overwrite"}, "checkpoint.resume", replaces_and_resumes},
    {{"checkpoint.resume"}, "run.overwrite", replaces_and_resumes},
    {{"generate.prompt"}, "generate.prompt_file", gives_prompt},
    {{"generate.prompt"}, "generate.prompts", gives_prompt},
    {{"generate.prompt_file"}, "generate.prompt", gives_prompt_file},
    {{"generate.prompt_file"}, "generate.prompts", gives_prompt_file},
    {{"generate.prompts"}, "generate.prompt", gives_prompts},
    {{"generate.prompts"}, "generate.prompt_file", gives_prompts},
    {{"machine.param_dtype", "machine.reduce_dtype", "machine.buffer_dtype"},
     "machine.dtype",
     [](const Config& c) {
       return c.machine.dtype == Dtype::float64 &&
              (mixes_float64<&MachineConfig::param_dtype>(c) ||
               mixes_float64<&MachineConfig::reduce_dtype>(c) ||
               mixes_float64<&MachineConfig::buffer_dtype>(c));
     }},
    {kDtypeKeys, "machine.param_dtype", mixes_float64<&MachineConfig::param_dtype>},
    {kDtypeKeys, "machine.reduce_dtype", mixes_float64<&MachineConfig::reduce_dtype>},
    {kDtypeKeys, "machine.buffer_dtype", mixes_float64<&MachineConfig::buffer_dtype>},
    {{"machine.dtype", "machine.param_dtype", "machine.device"},
     "machine.kernels",
     [](const Config& c) { return c.machine.kernels == Kernels::fused && lacks_fused_kernels(c); }},
    {{"machine.recompute"}, "machine.kernels", runs_gates_again},
    {{"machine.compile"}, "machine.kernels", compiles_plain_kernels},
    {kKernelKeys, "machine.recompute", runs_gates_again},
    {{"model.name"}, "machine.recompute", runs_gates_again},
    {kKernelKeys, "machine.compile", compiles_plain_kernels},
    {{"machine.device"}, "machine.offload", offloads_to_disk_of_device},
    {{"machine.offload"}, "machine.device", offloads_to_disk_of_device},
    {{"layout.devices"}, "machine.device", lists_gpus_beside_cpu},
    {{"machine.device"}, "layout.devices", lists_gpus_beside_cpu},
    {{"layout.devices"}, "layout.local_ranks", counts_devices_otherwise},
    {{"layout.local_ranks"}, "layout.devices", counts_devices_otherwise},
    {{"machine.compress"}, "machine.reduce_dtype", rounds_twice},
    {{"machine.reduce_dtype"}, "machine.compress", rounds_twice},
};

// If all three batch sizes are set, resets an inherited one, since two determine the third. Prefers
// to keep the global batch, which affects the results; the microbatch affects only rounding.
void reset_third_batch_size(Layer& layer) {
  const BatchConfig& batch = layer.config().batch;
  if (batch.global == 0 || batch.microbatch == 0 || batch.grad_accum == 0) return;
  constexpr std::string_view kKeys[] = {"batch.grad_accum", "batch.microbatch", "batch.global"};
  const auto* winner = std::ranges::find_if(kKeys, [&](auto key) { return layer.gives(key); });
  const auto* loser = std::ranges::find_if(kKeys, [&](auto key) { return layer.inherits(key); });
  if (winner == std::end(kKeys) || loser == std::end(kKeys)) return;
  layer.reset(*loser, *winner);
}

/// A setting that only some strategies use, or that fixes their number of ranks.
struct StrategySetting {
  std::string_view key;
  Condition is_used;
};

bool has_three_axes(const Config& c) { return c.layout.strategy == Strategy::three_axes; }
bool has_stages(const Config& c) {
  return has_three_axes(c) || strategy_of(c.layout).axis == Axis::pp;
}
bool splits_blocks(const Config& c) {
  return has_three_axes(c) || strategy_of(c.layout).axis == Axis::tp;
}
bool has_threads(const Config& c) { return strategy_of(c.layout).is_local(); }
bool has_zero(const Config& c) { return data_axis_of(c.layout) == DataAxisKind::zero; }
bool has_fsdp(const Config& c) { return data_axis_of(c.layout) == DataAxisKind::fsdp; }
bool can_accumulate(const Config& c) {
  return c.layout.accumulate == Accumulation::local || sharding_of(c.layout) >= Sharding::gradients;
}
bool has_copies(const Config& c) {
  const bool is_hybrid = has_fsdp(c) && c.layout.fsdp_sharding == FsdpSharding::hybrid;
  return is_hybrid || sharding_of(c.layout) == Sharding::none;
}
bool backend_fits(const Config& c) {
  const Backend backend = c.machine.backend;
  if (c.layout.strategy == Strategy::single) return backend == Backend::none;
  return has_threads(c) ? backend == Backend::local
                        : backend != Backend::local && backend != Backend::none;
}

constexpr StrategySetting kStrategySettings[] = {
    {"layout.pp", has_three_axes},         {"layout.dp", has_three_axes},
    {"layout.tp", has_three_axes},         {"layout.data_axis", has_three_axes},
    {"layout.schedule_pp", has_stages},    {"layout.pp_split", has_stages},
    {"layout.tp_vocab", splits_blocks},    {"layout.local_ranks", has_threads},
    {"layout.devices", has_threads},       {"layout.zero_stage", has_zero},
    {"layout.fsdp_sharding", has_fsdp},    {"layout.shard_size", has_fsdp},
    {"layout.accumulate", can_accumulate}, {"machine.compress", has_copies},
    {"machine.backend", backend_fits}};

constexpr std::string_view kStrategy = "layout.strategy";
constexpr std::string_view kDataAxis = "layout.data_axis";

std::string_view size_key(Axis axis) {
  return axis == Axis::pp ? "layout.pp" : axis == Axis::dp ? "layout.dp" : "layout.tp";
}

// The first of `keys` that the layer sets.
std::optional<std::string_view> first_given(const Layer& layer,
                                            std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (layer.gives(key)) return key;
  }
  return std::nullopt;
}

// --strategy auto chooses the whole layout except --nnodes. It resets inherited layout settings; a
// layout setting of the layer replaces an inherited auto.
void reset_auto_strategy(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  if (layout.strategy != Strategy::automatic) return;
  for (const Setting& setting : settings()) {
    if (!is_chosen_by_auto(setting)) continue;
    if (layer.gives(kStrategy)) {
      layer.reset(setting.key, kStrategy);
    } else if (layer.gives(setting.key)) {
      layout.strategy = Strategy::ddp;
      layer.note_change(kStrategy, setting.key);
      return;
    }
  }
}

void select_strategy(Layer& layer, Strategy strategy, std::string_view winner) {
  layer.config().layout.strategy = strategy;
  layer.note_change(kStrategy, winner);
}

// --zero-stage, --shard-size, ... select the strategy or data axis that uses them.
void select_data_axis(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  const auto zero = first_given(layer, {"layout.zero_stage"});
  const auto fsdp = first_given(layer, {"layout.fsdp_sharding", "layout.shard_size"});
  if (zero.has_value() == fsdp.has_value()) return;
  const DataAxisKind wanted = zero ? DataAxisKind::zero : DataAxisKind::fsdp;
  if (data_axis_of(layout) == wanted) return;
  const std::string_view winner = zero ? *zero : *fsdp;
  if (layout.strategy == Strategy::three_axes && !layer.gives(kDataAxis)) {
    layout.data_axis = wanted;
    layer.note_change(kDataAxis, winner);
  }
  const bool is_one_axis = layout.strategy == Strategy::ddp || layout.strategy == Strategy::zero ||
                           layout.strategy == Strategy::fsdp;
  if (is_one_axis) select_strategy(layer, strategy_for(wanted), winner);
}

// --local-ranks and --devices select the strategy whose ranks are threads.
void select_thread_strategy(Layer& layer) {
  const auto winner = first_given(layer, {"layout.local_ranks", "layout.devices"});
  const Strategy strategy = layer.config().layout.strategy;
  if (!winner) return;
  if (strategy == Strategy::ddp) select_strategy(layer, Strategy::dp, *winner);
  if (strategy == Strategy::pp) select_strategy(layer, Strategy::mp, *winner);
}

// A size along another axis than the strategy's selects --strategy 3d. The size of the inherited
// axis is then derived from the number of ranks.
void select_three_axes(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  const StrategyTraits strategy = strategy_of(layout);
  const bool is_plain = layout.strategy == Strategy::single || strategy.is_local();
  if (!strategy.axis || is_plain) return;
  const auto* other = std::ranges::find_if(kAxes, [&](Axis axis) {
    return axis != strategy.axis && layer.gives(size_key(axis)) && size_of(layout, axis) > 1;
  });
  if (other == kAxes.end()) return;
  layout.data_axis = data_axis_of(layout);
  for (const Axis axis : kAxes) {
    if (!layer.gives(size_key(axis))) size_of(layout, axis) = axis == strategy.axis ? 0 : 1;
  }
  select_strategy(layer, Strategy::three_axes, size_key(*other));
}

// If all three sizes are set, resets an inherited one, to be derived from the number of ranks.
void reset_third_size(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  const bool are_all_set =
      std::ranges::all_of(kAxes, [&](Axis axis) { return size_of(layout, axis) != 0; });
  if (!are_all_set || layout.strategy != Strategy::three_axes) return;
  const auto winner = first_given(layer, {"layout.tp", "layout.pp", "layout.dp"});
  if (!winner) return;
  for (const Axis axis : {Axis::dp, Axis::pp, Axis::tp}) {
    if (layer.inherits(size_key(axis))) return layer.reset(size_key(axis), *winner);
  }
}

// Selects the strategy that the layer's settings imply, and resets settings that it does not use.
void reset_layout_conflicts(Layer& layer) {
  reset_auto_strategy(layer);
  if (!layer.gives(kStrategy)) {
    select_data_axis(layer);
    select_thread_strategy(layer);
    select_three_axes(layer);
  }
  reset_third_size(layer);
  const LayoutConfig& before = layer.below().layout;
  const LayoutConfig& layout = layer.config().layout;
  const bool is_same = layout.strategy == before.strategy &&
                       sharding_of(layout) == sharding_of(before) &&
                       data_axis_of(layout) == data_axis_of(before);
  if (is_same || layout.strategy == Strategy::automatic) return;
  const auto winner =
      first_given(layer, {kStrategy, kDataAxis, "layout.zero_stage", "layout.fsdp_sharding",
                          "layout.shard_size", "layout.local_ranks", "layout.devices"});
  if (!winner) return;
  for (const StrategySetting& each : kStrategySettings) {
    if (!each.is_used(layer.config())) layer.reset(each.key, *winner);
  }
}

}  // namespace

std::vector<std::string> reset_conflicts(const Config& below, std::span<const Setting* const> given,
                                         Config& config) {
  Layer layer(below, given, config);
  for (const Conflict& conflict : kConflicts) {
    const auto* winner = std::ranges::find_if(
        conflict.given, [&](std::string_view key) { return layer.gives(key); });
    if (winner == conflict.given.end() || !conflict.is_conflict(layer.config())) continue;
    layer.reset(conflict.inherited, *winner);
  }
  reset_third_batch_size(layer);
  reset_layout_conflicts(layer);
  return layer.replaced();
}

bool microbatch_fits(std::int64_t microbatch, const Config& config, const Launch& launch) {
  LayoutConfig layout = config.layout;
  resolve_layout(layout, with_local_ranks(layout, launch));
  const std::int64_t at_once = microbatch * layout.dp;
  return at_once > 0 && config.batch.global % at_once == 0 &&
         config.batch.global / at_once >= layout.pp;
}

std::vector<std::string> reset_conflicting_batch(const Config& below,
                                                 std::span<const Setting* const> given,
                                                 Config& config, const Launch& launch) {
  Layer layer(below, given, config);
  const BatchConfig& batch = config.batch;
  if (!layer.gives("batch.global") || batch.global == 0) return {};
  for (const std::string_view key : {"batch.microbatch", "batch.grad_accum"}) {
    const std::int64_t factor = key == "batch.microbatch" ? batch.microbatch : batch.grad_accum;
    if (!layer.inherits(key) || microbatch_fits(factor, config, launch)) continue;
    layer.reset(key, "batch.global");
  }
  return layer.replaced();
}

}  // namespace dtrain::config
