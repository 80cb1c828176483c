#include "dtrain/job/machine_memory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/available_resources.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/device/plugin.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/plan/fitting.h"

namespace dtrain::job {
namespace {

using metrics::format_bytes;

/// A memory bound that several ranks share: those of a machine or container.
struct SharedBound {
  base::MemoryBound bound = {};  // the smallest that any of them sees
  std::vector<std::int64_t> ranks = {};
  parallel::MemoryPlan predicted = {};  // sum over these ranks

  // Returns the predicted use of the bounded memory: the host's, if ranks are on devices.
  [[nodiscard]] std::int64_t bytes(bool is_on_device) const {
    return is_on_device ? predicted.host : predicted.peak();
  }
};

// Serialises the predicted categories, then a line "SCOPE BYTES SOURCE" for each bound; the source
// may contain spaces.
std::string serialized(const parallel::MemoryPlan& predicted) {
  std::string text;
  for (const auto& part : parallel::kMemoryParts) text += fmt::format("{} ", predicted.*part.bytes);
  text += fmt::format("{} {}\n", predicted.final_save, predicted.host);
  for (const base::MemoryBound& bound : base::memory_bounds()) {
    text += fmt::format("{} {} {}\n", bound.scope, bound.bytes, bound.source);
  }
  return text;
}

void add_rank(std::vector<SharedBound>& all, std::int64_t rank, const std::string& text) {
  std::istringstream words(text);
  parallel::MemoryPlan predicted;
  for (const auto& part : parallel::kMemoryParts) words >> predicted.*part.bytes;
  words >> predicted.final_save >> predicted.host;
  base::MemoryBound own;
  while (words >> own.scope >> own.bytes >> std::ws && std::getline(words, own.source)) {
    auto shared = std::find_if(all.begin(), all.end(), [&](const SharedBound& one) {
      return one.bound.scope == own.scope;
    });
    if (shared == all.end()) shared = all.insert(all.end(), {.bound = own});
    shared->ranks.push_back(rank);
    shared->predicted = shared->predicted + predicted;
    if (own.bytes < shared->bound.bytes) shared->bound = own;
  }
}

// Collective.
std::vector<SharedBound> shared_bounds(comm::ProcessGroup& world,
                                       const parallel::MemoryPlan& predicted) {
  std::vector<SharedBound> bounds;
  std::int64_t rank = 0;
  for (const std::string& text : comm::exchange_texts(world, serialized(predicted))) {
    add_rank(bounds, rank++, text);
  }
  return bounds;
}

// On a CPU --memory-limit replaces the machine's bounds; on a device it bounds device memory.
bool has_own_limit(const config::Config& config) {
  return config.machine.memory_limit.count > 0 && config.machine.device.is_cpu();
}

// Returns the bound with the highest utilisation.
const SharedBound& fullest(const std::vector<SharedBound>& all, bool is_on_device) {
  return *std::ranges::max_element(all, {}, [&](const SharedBound& one) {
    return static_cast<double>(one.bytes(is_on_device)) /
           static_cast<double>(std::max<std::int64_t>(1, one.bound.bytes));
  });
}

// "this process is", "the 4 ranks of this machine (0 to 3) are".
std::string subject(const SharedBound& shared, std::int64_t world_size) {
  if (world_size == 1) return "this process is";
  if (shared.ranks.size() == 1) return fmt::format("rank {} is", shared.ranks.front());
  return fmt::format("the {} ranks of a machine ({} to {}) are", shared.ranks.size(),
                     shared.ranks.front(), shared.ranks.back());
}

std::string need_text(const SharedBound& shared, std::int64_t world_size, bool is_on_device) {
  return fmt::format("{} predicted to need {} of {}memory, and {} are available ({})",
                     subject(shared, world_size), format_bytes(shared.bytes(is_on_device)),
                     is_on_device ? "the host's " : "", format_bytes(shared.bound.bytes),
                     shared.bound.source);
}

// Advice for host memory, which holds offloaded state and the checkpoint copy.
std::string host_advice(const config::Config& config) {
  using Kind = config::Offload::Kind;
  const Kind kind = config.machine.offload.kind;
  std::vector<std::string> help;
  if (kind == Kind::all) help.emplace_back("--offload optimizer");
  if (kind != Kind::none) help.emplace_back("--offload none");
  if (config.layout.dp > 1) help.emplace_back("fewer ranks per machine");
  help.emplace_back("a smaller model");
  return fmt::format("{}", fmt::join(help, ", "));
}

// Returns a text such as "activations take the most, 2.0 GiB; use --microbatch 2 (1.2 GiB)".
std::string advice(const config::Config& config, const SharedBound& shared) {
  if (!config.machine.device.is_cpu()) return "use " + host_advice(config);
  const parallel::AvailableMemory available{.bytes = shared.bound.bytes,
                                            .ranks = std::ssize(shared.ranks)};
  return fmt::format("{}; use {}", parallel::largest_part(shared.predicted),
                     parallel::fitting_settings(config, available));
}

}  // namespace

bool fits_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                         const parallel::MemoryPlan& predicted) {
  const std::vector<SharedBound> bounds = shared_bounds(world, predicted);
  const bool is_on_device = !config.machine.device.is_cpu();
  return has_own_limit(config) || std::ranges::all_of(bounds, [&](const SharedBound& shared) {
           return base::fit_of(shared.bytes(is_on_device), shared.bound.bytes) == base::Fit::well;
         });
}

bool fits_device_memory(const config::Config& config, comm::World& world,
                        const parallel::MemoryPlan& predicted) {
  const c10::Device own = world.device();
  std::string text;  // "FREE NEEDED IDENTITY"; empty: there is nothing to compare
  // run_long: a rank whose device fails must not leave the others waiting.
  comm::run_long(world.control(), "querying a device for its free memory", [&] {
    if (own.is_cpu()) return;
    device::Plugin& plugin = device::plugin(config.machine.device.kind);
    if (const auto free = plugin.free_memory(own)) {
      text = fmt::format("{} {} {}", *free, predicted.peak(), plugin.identity(own));
    }
  });
  struct Room {
    std::int64_t free = std::numeric_limits<std::int64_t>::max();
    std::int64_t needed = 0;
  };
  std::map<std::string, Room> devices;
  for (const std::string& answer : comm::exchange_texts(world.control(), text)) {
    std::istringstream words(answer);
    Room rank;
    std::string identity;
    if (!(words >> rank.free >> rank.needed >> std::ws && std::getline(words, identity))) continue;
    Room& device = devices[identity];
    device.free = std::min(device.free, rank.free);
    device.needed += rank.needed;
  }
  return std::ranges::all_of(devices, [](const auto& device) {
    return base::fit_of(device.second.needed, device.second.free) == base::Fit::well;
  });
}

void check_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                          const parallel::MemoryPlan& predicted) {
  const std::vector<SharedBound> bounds = shared_bounds(world, predicted);
  if (has_own_limit(config) || bounds.empty()) return;
  const bool is_on_device = !config.machine.device.is_cpu();
  const SharedBound& shared = fullest(bounds, is_on_device);
  const base::Fit fit = base::fit_of(shared.bytes(is_on_device), shared.bound.bytes);
  if (fit == base::Fit::well) return;
  const std::string needed = need_text(shared, world.size(), is_on_device);
  if (fit == base::Fit::exceeds) {
    base::fail(
        base::ErrorKind::usage, "{}: {}{}", needed, advice(config, shared),
        is_on_device ? "" : "; or override the machine's limit with --memory-limit SIZE, per rank");
  }
  // Searching for settings takes seconds if there are many ranks to plan.
  comm::run_long_on_leader(world, "looking for settings that need less memory", [&] {
    base::log_warning("{}, which may not suffice: {}", needed, advice(config, shared));
  });
}

}  // namespace dtrain::job
