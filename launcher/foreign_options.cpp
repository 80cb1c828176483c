// Options of other launchers.
#include <algorithm>
#include <iterator>

#include "launcher/option_values.h"

namespace launcher {
namespace {

/// An option of another launcher that dtrun does not have, and what to do instead.
struct ForeignOption {
  std::string_view name;
  std::string_view advice;
};

constexpr std::string_view kStatic =
    "leave it out: the nodes meet at --master-addr and --master-port";
constexpr std::string_view kNoPython = "leave it out: any program is started, dtrun -- PROGRAM";
constexpr std::string_view kRanks = "use -n RANKS";
constexpr std::string_view kNodes = "use --nnodes N";
constexpr std::string_view kNoHosts =
    "dtrun starts the ranks of its own node only: start one dtrun on each node, by ssh or srun "
    "(docs/nodes.md)";
constexpr std::string_view kBind = "use --bind none, cores or numa";
constexpr std::string_view kOfProgram =
    "it concerns the program: dtrun -- dtrain --dtype NAME --strategy NAME ...";
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

std::string_view advice_on_foreign(std::string_view name) {
  const auto* foreign = std::ranges::find(kForeignOptions, name, &ForeignOption::name);
  return foreign == std::end(kForeignOptions) ? std::string_view() : foreign->advice;
}

}  // namespace launcher
