#include "launcher/option_values.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/addresses.h"
#include "launcher/environment.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail;
using dtrain::base::SlurmStep;
using dtrain::base::split;

/// As dtrain reads times: a number of seconds ("1e3"), or a duration.
std::optional<double> seconds_in(std::string_view value) {
  if (const auto seconds = dtrain::base::number_in<double>(value)) return seconds;
  return dtrain::base::seconds_in(value);
}

int default_num_ranks(const SlurmStep& step) {
  if (step.gpus > 0) return static_cast<int>(step.gpus);
  // If no plugin binds tasks to cores, only SLURM's number gives a task's share of them.
  const std::int64_t usable = dtrain::base::usable_cores();
  return static_cast<int>(step.cores > 0 ? std::min(step.cores, usable) : 1);
}

/// An option of another launcher that dtrun does not have, and what to do instead.
struct ForeignOption {
  std::string_view name;
  std::string_view advice;
};

constexpr std::string_view kStatic =
    "leave it out: the nodes connect at --master-addr and --master-port";
constexpr std::string_view kNoPython =
    "leave it out: dtrun starts any program, as in dtrun -- PROGRAM";
constexpr std::string_view kRanks = "use -n RANKS";
constexpr std::string_view kNodes = "use --nnodes N";
constexpr std::string_view kNoHosts =
    "dtrun starts the ranks of its own node only: start one dtrun on each node, by ssh or srun "
    "(docs/guide/nodes.md)";
constexpr std::string_view kBind = "use --bind none, cores or numa";
constexpr std::string_view kOfProgram =
    "it is an option of the program: dtrun -- dtrain --dtype NAME --strategy NAME ...";
constexpr std::string_view kNothingToSay = "leave it out: dtrun needs no such option";
constexpr ForeignOption kForeignOptions[] = {
    {"--num-processes", kRanks},
    {"--num-gpus", kRanks},
    {"--gpus", kRanks},
    {"--ngpus", kRanks},
    {"--num-ranks", kRanks},
    {"--nprocs", kRanks},
    {"--ntasks", kRanks},
    {"--ntasks-per-node", kRanks},
    {"--world-size", kRanks},
    {"--num-nodes", kNodes},
    {"--nodes", kNodes},
    {"--num-machines", kNodes},
    {"-N", kNodes},
    {"--machine-rank", "use --node-rank R"},
    {"--main-process-ip", "use --master-addr ADDRESS"},
    {"--main-process-port", "use --master-port PORT"},
    {"--hostfile", kNoHosts},
    {"--host", kNoHosts},
    {"--hosts", kNoHosts},
    {"-H", kNoHosts},
    {"--include", kNoHosts},
    {"--exclude", kNoHosts},
    {"--bind-to", kBind},
    {"--map-by", kBind},
    {"--mixed-precision", kOfProgram},
    {"--use-deepspeed", kOfProgram},
    {"--use-fsdp", kOfProgram},
    {"--gpu-ids", "set CUDA_VISIBLE_DEVICES"},
    {"--multi-gpu", kNothingToSay},
    {"--launcher", kNothingToSay},
    {"--oversubscribe", kNothingToSay},
    {"--allow-run-as-root", kNothingToSay},
    {"-x", "leave it out: ranks inherit the environment of dtrun"},
    {"--rdzv-conf", kStatic},
    {"--start-method", kNoPython},
    {"--no-python", kNoPython},
    {"--module", "dtrun starts programs, not modules: dtrun -- python3 -m MODULE"},
    {"-m", "dtrun starts programs, not modules: dtrun -- python3 -m MODULE"},
};

}  // namespace

int num_ranks_from(std::string_view name, std::string_view value) {
  const int gpus = value == "auto" || value == "gpu" ? count_gpus() : 0;
  if (value == "cpu" || (value == "auto" && gpus == 0)) {
    return static_cast<int>(dtrain::base::usable_cores());
  }
  if (value == "auto") return gpus;
  if (value == "gpu") {
    if (gpus == 0) fail(ErrorKind::usage, "{} gpu: no GPU found; give a number, or cpu", name);
    return gpus;
  }
  if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
    fail(ErrorKind::usage, "{}: found '{}'; give a number of ranks, auto, gpu or cpu", name, value);
  }
  return number_in<int>(name, value, 1, kMaxRanks);
}

StreamChoice streams_from(std::string_view name, std::string_view value) {
  if (value.find(':') == std::string_view::npos) {
    return StreamChoice(number_in<int>(name, value, 0, 3));
  }
  std::map<int, int> per_rank;
  for (const std::string_view part : split(value, ',')) {
    const auto colon = part.find(':');
    if (colon == std::string_view::npos) {
      fail(ErrorKind::usage, "{}: found '{}'; give 0 to 3, or RANK:0-3 pairs such as 0:3,1:1", name,
           value);
    }
    per_rank[number_in<int>(name, part.substr(0, colon), 0, kMaxRanks - 1)] =
        number_in<int>(name, part.substr(colon + 1), 0, 3);
  }
  return StreamChoice(std::move(per_rank));
}

Bind bind_from(std::string_view name, std::string_view value) {
  if (value == "none") return Bind::none;
  if (value == "cores") return Bind::cores;
  if (value == "numa") return Bind::numa;
  fail(ErrorKind::usage, "{}: found '{}'; give none, cores or numa", name, value);
}

int num_nodes_from(std::string_view name, std::string_view value) {
  const auto colon = value.find(':');
  const int count = number_in<int>(name, value.substr(0, colon), 1, kMaxNodes);
  if (colon != std::string_view::npos && value.substr(0, colon) != value.substr(colon + 1)) {
    fail(ErrorKind::usage, "{}: found '{}', but the number of nodes is fixed: give one number",
         name, value);
  }
  return count;
}

std::int64_t size_from(std::string_view name, std::string_view value) {
  const auto bytes = dtrain::base::bytes_in(value);
  if (!bytes) {
    fail(ErrorKind::usage, "{}: found '{}'; give a size such as 64MiB, or 0 for none", name, value);
  }
  return *bytes;
}

std::chrono::duration<double> seconds_from(std::string_view name, std::string_view value,
                                           double low) {
  constexpr double kMaxSeconds = 86400.0;
  const auto seconds = seconds_in(value);
  if (!seconds || !(*seconds >= low && *seconds <= kMaxSeconds)) {
    fail(ErrorKind::usage, "{}: found '{}'; give {}, from {} to {} s", name, value,
         dtrain::base::kDurationForms, low, kMaxSeconds);
  }
  return std::chrono::duration<double>(*seconds);
}

std::chrono::duration<double> hang_timeout_from(std::string_view name, std::string_view value) {
  const auto seconds = seconds_in(value);
  if (seconds && *seconds == 0.0) return std::chrono::duration<double>(0);
  if (!seconds || *seconds < kLeastTimeout) {
    fail(ErrorKind::usage, "{}: found '{}'; give 0 (never), or at least {} seconds (90s, 10m)",
         name, value, kLeastTimeout);
  }
  return seconds_from(name, value, kLeastTimeout);
}

void take_from_slurm(const SlurmStep& step, Options& options, std::vector<std::string>& given) {
  const auto is_given = [&](std::string_view name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  const auto fill = [&](std::string_view name, auto& field, const auto& value) {
    if (is_given(name)) return;
    field = value();
    given.emplace_back(name);
  };
  for (const std::string_view name : {"--nnodes", "--standalone", "--emulate-nodes"}) {
    if (is_given(name)) return;
  }
  if (step.num_tasks != step.num_nodes) {
    dtrain::base::fail(ErrorKind::usage,
                       "srun started {} dtruns on {} node{}; give it --ntasks-per-node=1, since "
                       "dtrun starts the ranks of a node, or dtrun --standalone for jobs of their "
                       "own",
                       step.num_tasks, step.num_nodes, step.num_nodes == 1 ? "" : "s");
  }
  fill("--nproc-per-node", options.num_ranks, [&] { return default_num_ranks(step); });
  if (step.num_nodes == 1) return;
  options.follows_slurm = true;
  fill("--nnodes", options.num_nodes, [&] { return static_cast<int>(step.num_nodes); });
  fill("--node-rank", options.node_rank, [&] { return static_cast<int>(step.node); });
  fill("--master-addr", options.master_addr,
       [&] { return dtrain::net::address_of_first_node(step); });
  fill("--master-port", options.master_port,
       [&] { return static_cast<int>(dtrain::base::port_of(step)); });
}

std::string_view advice_on_foreign(std::string_view name) {
  const auto* foreign = std::ranges::find(kForeignOptions, name, &ForeignOption::name);
  return foreign == std::end(kForeignOptions) ? std::string_view() : foreign->advice;
}

}  // namespace launcher
