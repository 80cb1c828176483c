// Settings of commands other than train: generate, verify, export, import, plan.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr double kMaxTflops = 1e9;
constexpr double kMaxSamples = 1e6;

constexpr Requirement kHuggingFace{"without --format huggingface", [](const Config& c) {
                                     return c.exporting.format == ExportFormat::huggingface;
                                   }};
constexpr Requirement kOneFile{"with --format huggingface: a folder is not replaced",
                               [](const Config& c) { return !kHuggingFace.is_met(c); }};

constexpr Setting kCommandsSettings[] = {
    {"generate.from", "--from", "PATH", "", "run folder, checkpoint, or model.safetensors",
     kGenerate | kEvaluate, FIELD(generate.from)},
    {"generate.from_layers", "--from-layers", "L", "",
     "number of layers, for a --from file that does not record it; 0: read it from the file",
     kGenerate | kEvaluate, FIELD(generate.from_layers), between(0, kMaxLayers),
     formerly("generate.from_levels", "--from-levels")},
    {"generate.prompt", "--prompt", "TEXT", "",
     "text to continue; -: read standard input; empty: begin after a newline", kGenerate,
     FIELD(generate.prompt)},
    {"generate.prompt_file", "--prompt-file", "FILE", "",
     "file with the text to continue, read byte for byte; -: standard input", kGenerate,
     FIELD(generate.prompt_file)},
    {"generate.prompts", "--prompts", "FILE", "",
     "file with several prompts: one per line, or \"prompt\" of each line's JSON object if FILE "
     "ends in .jsonl; -: standard input, as lines",
     kGenerate, FIELD(generate.prompts)},
    {"generate.samples", "--samples", "N", "",
     "continuations of each prompt; number i has the seed --seed + i - 1", kGenerate,
     FIELD(generate.samples), between(1, kMaxSamples)},
    {"generate.max_tokens", "--max-tokens", "N", "tokens",
     "tokens to generate; auto: 200, or as many as the model's positions allow after the prompt",
     kGenerate, FIELD(generate.max_tokens), between(1, kMaxPositions)},
    {"generate.temperature", "--temperature", "X", "",
     "sampling temperature: below 1 favours likely tokens; 0: always the likeliest (greedy)",
     kGenerate, FIELD(generate.temperature), at_least(0)},
    {"generate.top_k", "--top-k", "K", "tokens", "sample from the K likeliest tokens; 0: off",
     kGenerate, FIELD(generate.top_k), between(0, kMaxVocab)},
    {"generate.top_p", "--top-p", "P", "",
     "sample from the likeliest tokens whose probabilities sum to P (nucleus), after --top-k; 1: "
     "off",
     kGenerate, FIELD(generate.top_p), above(0, 1)},
    {"generate.stop", "--stop", "TEXT", "",
     "end before this text; repeat the flag for several texts", kGenerate, FIELD(generate.stop),
     kRepeatable},
    {"generate.ignore_eos", "--ignore-eos", "", "",
     "continue after the end-of-document token of the tokenizer", kGenerate,
     FIELD(generate.ignore_eos)},
    {"generate.json_lines", "--json", "", "",
     "print one JSON object per text, in a line: prompt, text, sample, seed, tokens, finish_reason",
     kGenerate, FIELD(generate.json_lines)},

    {"verify.golden", "--golden", "FILE", "", "fixture: weights, batch and expected results",
     kVerify, FIELD(verify.golden)},
    {"verify.hugging_face", "--huggingface", "FOLDER", "",
     "model in Hugging Face's format, compared with --expected and --trajectory instead of "
     "--golden",
     kVerify, FIELD(verify.hugging_face)},
    {"verify.expected", "--expected", "FILE", "",
     "logits and gradients of the --huggingface model, safetensors", kVerify,
     FIELD(verify.expected)},
    {"verify.text", "--text", "FILE", "", "text of the --huggingface model's trajectory, as bytes",
     kVerify, FIELD(verify.text)},
    {"verify.trajectory", "--trajectory", "FILE", "", "expected AdamW losses, JSON", kVerify,
     FIELD(verify.trajectory)},
    {"verify.name", "--name", "NAME", "", "entry of the trajectory file", kVerify,
     FIELD(verify.name)},

    {"export.checkpoint", "PATH", "", "", "checkpoint, or run folder (its newest checkpoint)",
     kExport, FIELD(exporting.checkpoint)},
    {"export.file", "FILE", "", "",
     "safetensors file to write, or folder with --format huggingface", kExport,
     FIELD(exporting.file)},
    {"export.format", "--format", "NAME", "",
     "safetensors: one file with the reference's names; huggingface: a new folder, which "
     "transformers loads",
     kExport, FIELD(exporting.format), one_of(kExportFormats)},
    {"export.dtype", "--dtype", "NAME", "",
     "dtype of the weights in the file; auto: as in the checkpoint", kExport,
     FIELD(exporting.dtype), one_of(kExportDtypes)},
    {"export.shard_size", "--shard-size", "SIZE", "",
     "largest size of a safetensors file in the folder (500MB); a larger model is written as "
     "shards with an index; 0: one file",
     kExport, FIELD(exporting.shard_size),
     syntax("a size: 5GB (of 1000), 4G or 4GiB (of 1024), or bytes; 0 for one file"),
     kRequires<kHuggingFace>},
    {"export.overwrite", "--overwrite", "", "", "replace the file if it exists", kExport,
     FIELD(exporting.overwrite), kRequires<kOneFile>},

    {"import.file", "FILE", "", "", "model weights: a safetensors or torch.save file", kImport,
     FIELD(importing.file)},
    {"import.checkpoint", "FOLDER", "", "", "checkpoint to write; it must not exist", kImport,
     FIELD(importing.checkpoint)},
    {"import.layers", "--layers", "L", "",
     "number of layers, for a file that does not record it; 0: read it from the file", kImport,
     FIELD(importing.layers), between(0, kMaxLayers), formerly("import.levels", "--levels")},

    {"plan.ranks", "--ranks", "N", "ranks",
     "ranks in the job; 0: compare every number that divides this machine's cores evenly", kPlan,
     FIELD(plan.ranks), between(0, kMaxRanks)},
    {"plan.ranks_per_node", "--ranks-per-node", "N", "ranks",
     "ranks per machine; 0: all on one machine", kPlan, FIELD(plan.ranks_per_node),
     between(0, kMaxRanks)},
    {"plan.device_memory", "--device-memory", "SIZE", "",
     "memory available to a rank (80GiB); 0: its share of this machine's memory", kPlan,
     FIELD(plan.device_memory),
     syntax("a size: 80G or 80GiB (powers of 1024), 500MB (powers of 1000), or bytes; 0 for this "
            "machine's")},
    {"plan.device_tflops", "--device-tflops", "X", "TFLOP/s",
     "training speed of a rank; 0: measure it on this machine", kPlan, FIELD(plan.device_tflops),
     between(0, kMaxTflops)},
    {"plan.link", "--link", "SIZE", "",
     "bandwidth from a rank to other nodes, in bytes per second (25GB); 0: as fast as within a "
     "node",
     kPlan, FIELD(plan.link),
     syntax("a rate: 25GB/s (powers of 1000), 1.25G or 1.25GiB (powers of 1024), or bytes; 0: as "
            "fast as within a node")},
    {"plan.show", "--show", "N", "layouts", "number of best layouts to show", kPlan,
     FIELD(plan.show), between(1, kMaxRanks)},
};

}  // namespace

std::span<const Setting> commands() noexcept { return kCommandsSettings; }

}  // namespace dtrain::config::tables
