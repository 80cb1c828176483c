#include "dtrain/config/family.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::config {

std::span<const Family* const> families() noexcept {
#define FAMILY(name) &name::family(),
  static const Family* const kFamilies[] = {
#include "dtrain/config/families.inc"
  };
#undef FAMILY
  return kFamilies;
}

std::span<const Choice> family_names() noexcept {
  static const std::vector<Choice> names = [] {
    std::vector<Choice> all;
    for (const Family* family : families()) all.emplace_back(family->name, 0);
    return all;
  }();
  return names;
}

bool HuggingFaceModule::lacks_prefix(std::string_view name) const noexcept {
  return std::ranges::any_of(children,
                             [&](std::string_view child) { return name.starts_with(child); });
}

bool HuggingFaceModule::holds(std::string_view name) const noexcept {
  return name.starts_with(prefix) && lacks_prefix(name.substr(prefix.size()));
}

const Family& family_of(const ModelConfig& model) {
  const auto found = std::ranges::find(families(), model.name, &Family::name);
  DTRAIN_CHECK(found != families().end(), "{}", model.name);
  return **found;
}

ModelConfig with_resolved_sizes(ModelConfig model) {
  const Family& family = family_of(model);
  if (family.resolve_sizes != nullptr) family.resolve_sizes(model);
  return model;
}

bool repeats_value(const Setting& setting, const Config& config, const Config& other) {
  const std::string value = value_text(setting, config);
  if (value == value_text(setting, other)) return true;
  if (setting.family.empty()) return false;
  const auto resolved = [&](Config each) {
    each.model = with_resolved_sizes(std::move(each.model));
    return value_text(setting, each);
  };
  Config changed = other;
  assign_text(setting, value, setting.key, changed);
  return resolved(changed) == resolved(other);
}

FamilySettings::FamilySettings() {
  for (const Family* family : families()) structs_.push_back(family->defaults());
}

DeviceRates device_rates(const MachineConfig& machine) {
  constexpr double kBandwidth = 3.0e12;
  constexpr double kHalf = 790e12;
  constexpr double kTf32 = 390e12;
  constexpr double kFull = 50e12;  // float32, and float64 on tensor cores
  const bool is_tf32 = machine.matmul_precision == MatmulPrecision::tf32;
  const double wide = is_tf32 ? kTf32 : kFull;
  switch (machine.param_dtype) {
    case Dtype::bfloat16:
      return {.matmul_flops = kHalf, .wide_matmul_flops = kHalf, .memory_bandwidth = kBandwidth};
    case Dtype::float16:
      return {.matmul_flops = kHalf, .wide_matmul_flops = wide, .memory_bandwidth = kBandwidth};
    case Dtype::float64:
      return {.matmul_flops = kFull, .wide_matmul_flops = kFull, .memory_bandwidth = kBandwidth};
    default:
      return {.matmul_flops = wide, .wide_matmul_flops = wide, .memory_bandwidth = kBandwidth};
  }
}

}  // namespace dtrain::config
