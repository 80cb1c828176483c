#include "dtrain/commands/doctor/machine_facts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "dtrain/base/available_memory.h"
#include "dtrain/base/cpu_list.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/commands/build_text.h"
#include "dtrain/job/cpu_type.h"
#include "dtrain/metrics/format.h"

namespace dtrain::commands::doctor {
namespace {

using Json = nlohmann::json;

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// A rank's own facts, as texts and numbers.
Json own_facts(const comm::World& world, const config::Config& config,
               const config::StartRecord& start) {
  const Json record = Json::parse(start.provenance);
  const std::int64_t gpus = record.value("gpus", std::int64_t{0});
  Json facts{
      {"host", host_name()},
      {"version", build_text(start)},
      {"cpu", record.value("cpu", "unknown")},
      {"type", job::cpu_type()},
      {"mask", base::cpu_list_text(base::affinity_mask())},
      {"cores", base::usable_cores()},
      {"threads", config.machine.threads},
      {"device",
       fmt::format("{}; plugins: {}; {}", world.device().str(), record.value("plugins", "none"),
                   gpus == 0 ? "no GPU with an NVIDIA driver is here"
                             : fmt::format("NVIDIA GPUs with a driver: {}", gpus))}};
  const auto bounds = base::memory_bounds();
  const auto least = std::ranges::min_element(bounds, {}, &base::MemoryBound::bytes);
  facts["memory"] = least == bounds.end() ? -1 : least->bytes;
  facts["bound"] = least == bounds.end() ? "" : least->source;
  return facts;
}

std::vector<std::string> texts(const std::vector<Json>& ranks, const char* key) {
  std::vector<std::string> values;
  for (const Json& rank : ranks) values.push_back(rank.value(key, ""));
  return values;
}

void find_cores(const std::vector<Json>& ranks, Findings& findings) {
  std::vector<std::string> values;
  std::map<std::string, std::int64_t> threads_on;  // by the cores that ranks share
  for (const Json& rank : ranks) {
    const std::int64_t cores = rank.value("cores", 0);
    const std::int64_t threads = rank.value("threads", 0);
    const std::string mask = rank.value("mask", "");
    values.push_back(fmt::format("{} usable of CPUs {}, {} thread{} per rank", cores, mask, threads,
                                 threads == 1 ? "" : "s"));
    threads_on[fmt::format("{} usable cores of {} (CPUs {})", cores, rank.value("host", ""),
                           mask)] += threads;
  }
  findings.fact_of_ranks("cores", values);
  for (const auto& [place, threads] : threads_on) {
    if (threads <= std::stoll(place)) continue;
    findings.note(fmt::format("{} threads share {}: fewer ranks or --threads would be faster",
                              threads, place));
  }
}

void find_memory(const std::vector<Json>& ranks, Findings& findings) {
  const auto bytes = [](const Json& rank) { return rank.value("memory", std::int64_t{-1}); };
  const auto least = std::ranges::min_element(ranks, {}, bytes);
  if (bytes(*least) < 0) return findings.fact("memory", "unknown");
  const std::string whose =
      ranks.size() == 1 ? "" : fmt::format("rank {}'s ", least - ranks.begin());
  findings.fact("memory", fmt::format("{}{} available, by {}", ranks.size() == 1 ? "" : "at least ",
                                      metrics::format_bytes(bytes(*least)),
                                      whose + least->value("bound", "")));
}

}  // namespace

void find_machine_facts(comm::World& world, const config::Config& config,
                        const config::StartRecord& record, Findings& findings) {
  const std::string own_text =
      own_facts(world, config, record).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<Json> ranks;
  for (const std::string& text : comm::exchange_texts(world.control(), own_text)) {
    ranks.push_back(Json::parse(text));
  }
  findings.fact_of_ranks("hosts", texts(ranks, "host"));
  findings.equal_fact("versions", texts(ranks, "version"),
                      "install the same build on every machine (docs/install.md)");
  findings.fact_of_ranks("processors", texts(ranks, "cpu"));
  const std::vector<std::string> types = texts(ranks, "type");
  if (config.machine.mixed_cpus) {
    findings.fact_of_ranks("CPU type", types);
  } else {
    findings.equal_fact("CPU type", types,
                        "types round differently; use machines of one type, or --mixed-cpus on");
  }
  find_cores(ranks, findings);
  find_memory(ranks, findings);
  findings.fact_of_ranks("devices", texts(ranks, "device"));
}

}  // namespace dtrain::commands::doctor
