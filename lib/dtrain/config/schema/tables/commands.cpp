// Settings of commands other than train: generate, verify, export, import, plan.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr double kMaxTflops = 1e9;

constexpr Setting kCommandsSettings[] = {
    {"generate.from", "--from", "PATH", "", "run folder, checkpoint, or model.safetensors",
     kGenerate | kEvaluate, FIELD(generate.from)},
    {"generate.from_layers", "--from-layers", "L", "",
     "layers of the model in a --from file that does not say; 0: the file says",
     kGenerate | kEvaluate, FIELD(generate.from_layers), between(0, kMaxLayers),
     formerly("generate.from_levels", "--from-levels")},
    {"generate.prompt", "--prompt", "TEXT", "",
     "text to continue; -: that of standard input; empty: begin after a newline", kGenerate,
     FIELD(generate.prompt)},
    {"generate.prompt_file", "--prompt-file", "FILE", "",
     "file that holds the text to continue, every byte of it; -: standard input", kGenerate,
     FIELD(generate.prompt_file)},
    {"generate.max_tokens", "--max-tokens", "N", "tokens", "tokens to generate", kGenerate,
     FIELD(generate.max_tokens), between(1, kMaxPositions)},
    {"generate.temperature", "--temperature", "X", "",
     "temperature of sampling: below 1 prefers likely tokens; 0 always takes the likeliest",
     kGenerate, FIELD(generate.temperature), at_least(0)},
    {"generate.top_k", "--top-k", "K", "tokens", "choose among the K likeliest; 0 is off",
     kGenerate, FIELD(generate.top_k), between(0, kMaxVocab)},

    {"verify.golden", "--golden", "FILE", "", "fixture: weights, batch and expected results",
     kVerify, FIELD(verify.golden)},
    {"verify.trajectory", "--trajectory", "FILE", "", "expected AdamW losses, JSON", kVerify,
     FIELD(verify.trajectory)},
    {"verify.name", "--name", "NAME", "", "entry of the trajectory file", kVerify,
     FIELD(verify.name)},

    {"export.checkpoint", "PATH", "", "", "checkpoint, or run folder for its newest one", kExport,
     FIELD(exporting.checkpoint)},
    {"export.file", "FILE", "", "", "safetensors file to write", kExport, FIELD(exporting.file)},
    {"export.dtype", "--dtype", "NAME", "",
     "dtype of the weights in the file; auto: as in the checkpoint", kExport,
     FIELD(exporting.dtype), one_of(kExportDtypes)},
    {"export.overwrite", "--overwrite", "", "", "replace the file if it exists", kExport,
     FIELD(exporting.overwrite)},

    {"import.file", "FILE", "", "", "a model's weights, as safetensors or torch.save wrote them",
     kImport, FIELD(importing.file)},
    {"import.checkpoint", "FOLDER", "", "", "checkpoint to write; it must not exist", kImport,
     FIELD(importing.checkpoint)},
    {"import.layers", "--layers", "L", "",
     "layers of the model in a file that does not say; 0: the file says", kImport,
     FIELD(importing.layers), between(0, kMaxLayers), formerly("import.levels", "--levels")},

    {"plan.ranks", "--ranks", "N", "ranks",
     "ranks in the job; 0: compare every number that divides this machine's cores evenly", kPlan,
     FIELD(plan.ranks), between(0, kMaxRanks)},
    {"plan.ranks_per_node", "--ranks-per-node", "N", "ranks", "ranks of a machine; 0: all on one",
     kPlan, FIELD(plan.ranks_per_node), between(0, kMaxRanks)},
    {"plan.device_memory", "--device-memory", "SIZE", "",
     "memory that a rank may take (80GiB); 0: its share of this machine's memory", kPlan,
     FIELD(plan.device_memory),
     syntax("a size: 80G or 80GiB (of 1024), 500MB (of 1000), or bytes; 0 for this machine's")},
    {"plan.device_tflops", "--device-tflops", "X", "TFLOP/s",
     "speed that a rank reaches in training; 0: measured here", kPlan, FIELD(plan.device_tflops),
     between(0, kMaxTflops)},
    {"plan.link", "--link", "SIZE", "",
     "bytes per second that a rank sends to other nodes (25GB); 0: as fast as within a node", kPlan,
     FIELD(plan.link),
     syntax(
         "a rate: 25GB/s (of 1000), 1.25G or 1.25GiB (of 1024), or bytes; 0 for a link that costs "
         "nothing more")},
    {"plan.show", "--show", "N", "layouts", "best layouts to show", kPlan, FIELD(plan.show),
     between(1, kMaxRanks)},
};

}  // namespace

std::span<const Setting> commands() noexcept { return kCommandsSettings; }

}  // namespace dtrain::config::tables
