// Runs the commands of libdtrain.so, each from its resolved configuration.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dtrain/config/saved_run.h"

namespace dtrain::commands {

/// Trains a model and writes the run folder; saves `record` in config.json and metrics.jsonl.
/// Returns the exit status: that of ErrorKind::interrupted if the run was stopped on request and
/// saved a checkpoint, except within a SLURM job; otherwise 0.
///
/// Collective: every rank of the job.
/// Throws:     as train::TrainingLoop, job::make_world, job::Job, train::load_start and
///             job::RunFolder.
[[nodiscard]] int train(const config::Config& config, const config::StartRecord& record);

/// Returns the build that made this record: "dtrain 0.1.0 (commit 1a2b3c4d5e6f), LibTorch 2.11.0".
[[nodiscard]] std::string build_text(const config::StartRecord& record);

/// Receives results as they become available. `train` has no such callback; it prints directly.
using Output = std::function<void(std::string_view)>;

/// Compares the engine's results with golden numbers; on rank 0 passes one JSON object to `output`.
///
/// Collective: every rank of the job.
/// Throws:     Error{numerics} naming the worst check if one exceeds its tolerance; as job::Job and
///             the verify() of internal/verifier.h.
void verify(const config::Config& config, const Output& output);

/// Diagnoses the environment of a job with these settings. On rank 0 passes one line per fact to
/// `output`: machines, versions, cores, memory, the run folder, clocks, measured all-reduces.
///
/// record:     its provenance must also contain "plugins" and "gpus".
/// Collective: every rank of the job.
/// Throws:     on every rank, an Error that has the kind of the first problem and names it; as
///             job::make_world.
void run_doctor(const config::Config& config, const config::StartRecord& record,
                const Output& output);

/// Passes `output` a table of the possible layouts of a job with these settings, best first, and
/// the command line of the best one.
///
/// config: the user's settings, unresolved.
/// Throws: Error{usage} if no layout fits, with the reason for Ranking::closest_rejected().
void plan_layouts(const config::Config& config, const Output& output);

/// Passes `output` the prompt of config.generate, then max_tokens tokens, each as soon as it is
/// sampled. An empty prompt is replaced by a newline, which is not passed to `output`. The same
/// file, settings and seed give the same bytes on one machine.
///
/// Throws: Error{checkpoint} if the model file is missing or damaged, has no known tokenizer, or
///         does not specify the number of layers; Error{usage} if prompt and tokens exceed the
///         model's positions; Error{numerics} from sampling; any exception of `output`.
void generate(const config::Config& config, const Output& output);

/// Computes the loss of generate.from's model over data.train, or over the last data.val_fraction
/// of it. Passes `output` one JSON object in one line: the loss in nats per token, the number of
/// tokens, the perplexity and the sequence length. With the same sequences, settings, device and
/// threads, and without tp and pp, reproduces the bits of a training run's evaluations.
///
/// config: resolved except for the model, which is read from its file.
/// Throws: as generate for the model; Error{data} for the data; Error{usage} for a mixture or
///         tokens of another tokenizer; Error{numerics} for a loss that is not finite.
void evaluate(const config::Config& config, const Output& output);

/// Exports a checkpoint, selected by config.exporting, as the model file that the run would write
/// at its end, or as a folder in Hugging Face's format. First verifies the weights' checksums.
/// Passes one line to `output`.
///
/// Throws: Error{checkpoint} naming the file that is missing, damaged, of another model, or cannot
///         be written; Error{usage} if Hugging Face's format has no such model.
void export_checkpoint(const config::Config& config, const Output& output);

/// Imports config.importing's file as a checkpoint of step 0 without optimizer state, in float64 if
/// the file has float64 weights, otherwise in float32. Creates the folder atomically. Passes one
/// line to `output`.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing, unknown or misshapen,
///         or the folder that exists or cannot be written; as train::model_of.
void import_checkpoint(const config::Config& config, const Output& output);

}  // namespace dtrain::commands
