#include "dtrain/config/layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "dtrain/base/check.h"

namespace dtrain::config {
namespace {

using Ranks = Strategy::Ranks;

constexpr std::array<Strategy, 10> kStrategies{{
    {"single", Ranks::dp},
    {"ddp", Ranks::dp},
    {"zero", Ranks::dp, "zero"},
    {"deepspeed", Ranks::dp, "zero"},
    {"fsdp", Ranks::dp, "fsdp"},
    {"tp", Ranks::tp},
    {"pp", Ranks::pp},
    {"3d", Ranks::given, ""},
    {"dp", Ranks::dp, "ddp", "ddp"},
    {"mp", Ranks::pp, "ddp", "pp"},
}};

// `option` is the value of the data axis's own setting; empty: it has none.
struct Meaning {
  std::string_view data_axis;
  std::string_view option;
  Sharding sharding;
};

constexpr std::array<Meaning, 8> kMeanings{{
    {"ddp", "", Sharding::none},
    {"zero", "1", Sharding::optimizer},
    {"zero", "2", Sharding::gradients},
    {"zero", "3", Sharding::parameters},
    {"fsdp", "none", Sharding::none},
    {"fsdp", "grad-op", Sharding::freed_parameters},
    {"fsdp", "full", Sharding::parameters},
    {"fsdp", "hybrid", Sharding::parameters},
}};

}  // namespace

const Strategy& strategy_of(const LayoutConfig& layout) {
  const auto found =
      std::find_if(kStrategies.begin(), kStrategies.end(),
                   [&](const Strategy& strategy) { return strategy.name == layout.strategy; });
  DTRAIN_CHECK(found != kStrategies.end(), "strategy {}", layout.strategy);
  return *found;
}

std::string_view data_axis_of(const LayoutConfig& layout) {
  const std::string_view axis = strategy_of(layout).data_axis;
  return axis.empty() ? std::string_view(layout.data_axis) : axis;
}

Sharding sharding_of(const LayoutConfig& layout) {
  const std::string_view axis = data_axis_of(layout);
  const std::string stage = std::to_string(layout.zero_stage);
  const auto found = std::find_if(kMeanings.begin(), kMeanings.end(), [&](const Meaning& meaning) {
    return meaning.data_axis == axis &&
           (meaning.option.empty() ||
            meaning.option == (axis == "fsdp" ? layout.fsdp_sharding : stage));
  });
  DTRAIN_CHECK(found != kMeanings.end(), "data axis {}", axis);
  return found->sharding;
}

// Sums of sums: over a rank's microbatches, the ranks that share one copy, and the copies. One rank
// adds groups of an odd number left to right and then in a binary tree, so only a tree of whole
// sums can follow a first sum of any length.
bool keeps_order_of_one_rank(const LayoutConfig& layout, std::int64_t grad_accum) {
  const std::int64_t shards = std::max<std::int64_t>(layout.shard_size, 1);
  const std::int64_t copies = std::max<std::int64_t>(layout.dp, 1) / shards;
  const bool is_sharded = layout.accumulate == "sharded";
  std::int64_t summed = 1;
  for (const std::int64_t count :
       {is_sharded ? shards : grad_accum, is_sharded ? grad_accum : shards, copies}) {
    if (summed > 1 && !std::has_single_bit(static_cast<std::uint64_t>(count))) return false;
    summed *= count;
  }
  return true;
}

std::optional<std::string> parse_offload(std::string_view text) {
  constexpr std::string_view kDisk = "disk:";
  if (text == "none" || text == "optimizer" || text == "all") return std::string();
  if (!text.starts_with(kDisk) || text.size() == kDisk.size()) return std::nullopt;
  return std::string(text.substr(kDisk.size()));
}

std::optional<WrapPolicy> parse_wrap(std::string_view text) {
  if (text == "block") return WrapPolicy{};
  if (text == "none") return WrapPolicy{.kind = WrapPolicy::Kind::none};
  constexpr std::string_view kSize = "size:";
  if (!text.starts_with(kSize)) return std::nullopt;
  WrapPolicy setting{.kind = WrapPolicy::Kind::size};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + kSize.size(), end, setting.min_elements);
  if (error != std::errc() || rest != end || setting.min_elements < 1) return std::nullopt;
  return setting;
}

}  // namespace dtrain::config
