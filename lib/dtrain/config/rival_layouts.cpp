#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "dtrain/config/layout.h"
#include "dtrain/config/resolve_layout.h"
#include "dtrain/config/rivals.h"

namespace dtrain::config {
namespace {

/// A setting that only some strategies use, or that fixes their number of ranks.
struct OfStrategies {
  std::string_view key;
  Condition is_read;
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
bool serves_ranks(const Config& c) {
  const Backend backend = c.machine.backend;
  if (c.layout.strategy == Strategy::single) return backend == Backend::none;
  return has_threads(c) ? backend == Backend::local
                        : backend != Backend::local && backend != Backend::none;
}

constexpr OfStrategies kOfStrategies[] = {
    {"layout.pp", has_three_axes},         {"layout.dp", has_three_axes},
    {"layout.tp", has_three_axes},         {"layout.data_axis", has_three_axes},
    {"layout.schedule_pp", has_stages},    {"layout.pp_split", has_stages},
    {"layout.tp_vocab", splits_blocks},    {"layout.local_ranks", has_threads},
    {"layout.devices", has_threads},       {"layout.zero_stage", has_zero},
    {"layout.fsdp_sharding", has_fsdp},    {"layout.shard_size", has_fsdp},
    {"layout.accumulate", can_accumulate}, {"machine.compress", has_copies},
    {"machine.backend", serves_ranks}};

constexpr std::string_view kStrategy = "layout.strategy";
constexpr std::string_view kDataAxis = "layout.data_axis";

std::string_view size_key(Axis axis) {
  return axis == Axis::pp ? "layout.pp" : axis == Axis::dp ? "layout.dp" : "layout.tp";
}

// The first of `keys` that the layer sets.
std::optional<std::string_view> given_of(const Layer& layer,
                                         std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (layer.gives(key)) return key;
  }
  return std::nullopt;
}

// --strategy auto chooses everything but --nnodes: any given choice replaces an inherited auto.
void drop_open_strategy(Layer& layer) {
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

void take_strategy(Layer& layer, Strategy strategy, std::string_view winner) {
  layer.config().layout.strategy = strategy;
  layer.note_change(kStrategy, winner);
}

// --zero-stage, --shard-size, ... select how the data axis shards its state.
void take_data_axis_of_options(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  const auto zero = given_of(layer, {"layout.zero_stage"});
  const auto fsdp = given_of(layer, {"layout.fsdp_sharding", "layout.shard_size"});
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
  if (is_one_axis) take_strategy(layer, strategy_with(wanted), winner);
}

void take_threads(Layer& layer) {
  const auto winner = given_of(layer, {"layout.local_ranks", "layout.devices"});
  const Strategy strategy = layer.config().layout.strategy;
  if (!winner) return;
  if (strategy == Strategy::ddp) take_strategy(layer, Strategy::dp, *winner);
  if (strategy == Strategy::pp) take_strategy(layer, Strategy::mp, *winner);
}

// A size along an axis other than the strategy's makes the layout multi-dimensional; the size of
// the inherited axis follows from the number of ranks.
void take_axes_of_sizes(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  const StrategyMeaning strategy = strategy_of(layout);
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
  take_strategy(layer, Strategy::three_axes, size_key(*other));
}

// The third of three sizes follows from the number of ranks.
void drop_third_size(Layer& layer) {
  LayoutConfig& layout = layer.config().layout;
  const bool are_all_there =
      std::ranges::all_of(kAxes, [&](Axis axis) { return size_of(layout, axis) != 0; });
  if (!are_all_there || layout.strategy != Strategy::three_axes) return;
  const auto winner = given_of(layer, {"layout.tp", "layout.pp", "layout.dp"});
  if (!winner) return;
  for (const Axis axis : {Axis::dp, Axis::pp, Axis::tp}) {
    if (layer.inherits(size_key(axis))) return layer.reset(size_key(axis), *winner);
  }
}

}  // namespace

void drop_rival_layouts(Layer& layer) {
  drop_open_strategy(layer);
  if (!layer.gives(kStrategy)) {
    take_data_axis_of_options(layer);
    take_threads(layer);
    take_axes_of_sizes(layer);
  }
  drop_third_size(layer);
  const LayoutConfig& before = layer.below().layout;
  const LayoutConfig& layout = layer.config().layout;
  const bool is_same = layout.strategy == before.strategy &&
                       sharding_of(layout) == sharding_of(before) &&
                       data_axis_of(layout) == data_axis_of(before);
  if (is_same || layout.strategy == Strategy::automatic) return;
  const auto winner =
      given_of(layer, {kStrategy, kDataAxis, "layout.zero_stage", "layout.fsdp_sharding",
                       "layout.shard_size", "layout.local_ranks", "layout.devices"});
  if (!winner) return;
  for (const OfStrategies& each : kOfStrategies) {
    if (!each.is_read(layer.config())) layer.reset(each.key, *winner);
  }
}

}  // namespace dtrain::config
