#include "dtrain/parallel/plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "dtrain/base/check.h"

namespace dtrain::parallel {
namespace {

struct Preset {
  std::string_view strategy;
  mesh::MeshShape (*mesh)(const config::LayoutConfig&);
};

constexpr std::array<Preset, 2> kPresets{{
    {"single", [](const config::LayoutConfig&) { return mesh::MeshShape{}; }},
    {"ddp", [](const config::LayoutConfig& layout) { return mesh::MeshShape{.dp = layout.dp}; }},
}};

}  // namespace

Plan make_plan(const config::LayoutConfig& layout) {
  const auto preset = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& candidate) {
    return candidate.strategy == layout.strategy;
  });
  DTRAIN_CHECK(preset != kPresets.end(), "strategy {}", layout.strategy);
  return {.mesh = preset->mesh(layout)};
}

}  // namespace dtrain::parallel
