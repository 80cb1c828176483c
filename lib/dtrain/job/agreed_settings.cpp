#include "dtrain/job/agreed_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "dtrain/config/assign.h"

namespace dtrain::job {
namespace {

// By the numbers of cores, GPUs and ranks of a node.
constexpr std::array<std::string_view, 3> kFromNode{"machine.threads", "machine.device",
                                                    "layout.shard_size"};

// Ranks that recompute other parts would make other collective calls.
bool plan_depends_on_threads(const config::MachineConfig& machine) {
  return machine.recompute.kind == config::RecomputeSetting::Kind::automatic &&
         machine.memory_limit.count > 0;
}

bool may_differ(const config::Setting& setting, const config::Config& config) {
  if (setting.key == "layout.nnodes" || setting.key == "machine.interface") return true;
  return setting.key == "machine.threads" && !setting.changes_bits(config) &&
         !plan_depends_on_threads(config.machine);
}

}  // namespace

std::vector<comm::NamedValue> agreed_settings(const config::Config& config) {
  std::vector<comm::NamedValue> agreed;
  for (auto& [key, value] : config::value_texts(config::Command::train, config)) {
    const config::Setting& setting = *config::find_key(key);
    if (may_differ(setting, config)) continue;
    const bool is_from_node = std::ranges::find(kFromNode, key) != kFromNode.end();
    agreed.emplace_back(
        is_from_node
            ? fmt::format("{}, which follows from each node unless {} gives it", key, setting.flag)
            : key,
        std::move(value));
  }
  return agreed;
}

}  // namespace dtrain::job
