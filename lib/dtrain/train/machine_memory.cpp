#include "dtrain/train/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "dtrain/base/available_memory.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/machine.h"
#include "dtrain/metrics/format.h"

namespace dtrain::train {
namespace {

using metrics::format_bytes;

/// What the ranks of one machine, or of one container of it, need and have.
struct Machine {
  std::string name;
  std::vector<std::int64_t> ranks = {};
  std::int64_t predicted = 0;            // bytes of all its ranks
  base::AvailableMemory available = {};  // the least that one of them sees
};

// Ranks of one start of the system and of one launcher's node share memory. Launchers that do not
// say which node they are on say 0.
std::string machine_name() {
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  return fmt::format("{}/{}", boot_id, base::rank_env_of_process().node_rank);
}

// "NAME PREDICTED AVAILABLE SOURCE", where the source may hold spaces.
std::string packed(std::int64_t predicted) {
  const base::AvailableMemory available = base::available_memory();
  return fmt::format("{} {} {} {}", machine_name(), predicted, available.bytes, available.source);
}

void add_rank(std::vector<Machine>& machines, std::int64_t rank, const std::string& text) {
  std::istringstream words(text);
  std::string name;
  std::int64_t predicted = 0;
  base::AvailableMemory available;
  words >> name >> predicted >> available.bytes >> std::ws;
  std::getline(words, available.source);
  auto machine = std::find_if(machines.begin(), machines.end(),
                              [&](const Machine& one) { return one.name == name; });
  if (machine == machines.end()) {
    machine = machines.insert(machines.end(), {.name = name, .available = available});
  }
  machine->ranks.push_back(rank);
  machine->predicted += predicted;
  if (available.bytes < machine->available.bytes) machine->available = available;
}

// "this process is", "the 4 ranks of this machine (0 to 3) are".
std::string subject(const Machine& machine, std::int64_t world_size) {
  if (world_size == 1) return "this process is";
  if (machine.ranks.size() == 1) return fmt::format("rank {} is", machine.ranks.front());
  return fmt::format("the {} ranks of a machine ({} to {}) are", machine.ranks.size(),
                     machine.ranks.front(), machine.ranks.back());
}

std::string need(const Machine& machine, std::int64_t world_size) {
  return fmt::format("{} predicted to need {} of memory, and {} are available ({})",
                     subject(machine, world_size), format_bytes(machine.predicted),
                     format_bytes(machine.available.bytes), machine.available.source);
}

std::string what_helps(const config::Config& config) {
  std::string text;
  if (config.batch.microbatch > 1) {
    text += fmt::format("a smaller --microbatch than {} (more --grad-accum makes up for it), ",
                        config.batch.microbatch);
  }
  if (config.machine.recompute == "none") text += "--recompute level, ";
  if (config.layout.dp > 1) text += "fewer ranks of a machine, ";
  return text + "a smaller --seq-len or model";
}

}  // namespace

void check_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                          std::int64_t predicted) {
  std::vector<Machine> machines;
  std::int64_t rank = 0;
  for (const std::string& text : comm::exchange_texts(world, packed(predicted))) {
    add_rank(machines, rank++, text);
  }
  if (config::parse_bytes(config.machine.memory_limit).value() > 0) return;
  for (const Machine& machine : machines) {
    const base::Fit fit = base::fit_of(machine.predicted, machine.available.bytes);
    if (fit == base::Fit::exceeds) {
      base::fail(base::ErrorKind::usage,
                 "{}: use {}; or set another limit with --memory-limit SIZE, which is a rank's",
                 need(machine, world.size()), what_helps(config));
    }
    if (fit == base::Fit::tight && world.rank() == 0) {
      base::log_warning("{}: should that not suffice, use {}", need(machine, world.size()),
                        what_helps(config));
    }
  }
}

}  // namespace dtrain::train
