// The commands of libdtrain.so, each from a resolved configuration to its end.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dtrain/config/saved_run.h"

namespace dtrain::commands {

/// Trains a model and writes the run folder; `record` goes to its config.json and metrics. Returns
/// the exit status: 0, or that of ErrorKind::interrupted when it was asked to stop early and has
/// saved (0 within a SLURM job).
///
/// Collective: every rank of the job.
/// Throws:     as train::TrainingLoop, job::make_world, job::Job, train::load_start and job::RunFolder.
[[nodiscard]] int train(const config::Config& config, const config::StartRecord& record);

/// "dtrain 0.1.0 (commit 1a2b3c4d5e6f), LibTorch 2.11.0": the build that made this record.
[[nodiscard]] std::string build_text(const config::StartRecord& record);

/// Takes results as they come; `train` alone writes its table and lines itself.
using Output = std::function<void(std::string_view)>;

/// Checks golden numbers and gives one JSON object to `output`, on rank 0.
///
/// Collective: every rank of the job.
/// Throws:     Error{numerics} naming the worst check if one is beyond its tolerance; as job::Job
/// and train::verify.
void verify(const config::Config& config, const Output& output);

/// Gives `output`, on rank 0, a line for each fact that a job of these settings stands on, as it is
/// found: machines, versions, cores, memory, the run folder, clocks, measured all-reduces.
///
/// record:     its provenance also has "plugins" and "gpus".
/// Collective: every rank of the job.
/// Throws:     Error, the same on every rank, of the first problem's kind, naming it; as
///             job::make_world.
void run_doctor(const config::Config& config, const config::StartRecord& record,
                const Output& output);

/// Gives `output` a table of the layouts that a job of these settings could have, the best first,
/// and the command line of the best.
///
/// config: as asked, before anything is resolved.
/// Throws: Error{usage} where no layout fits, naming why the nearest does not.
void plan_layouts(const config::Config& config, const Output& output);

/// Gives `output` the prompt of config.generate, then max_tokens bytes, each as soon as it is
/// drawn. An empty prompt starts a text after a newline that is not written. The same file,
/// settings and seed give the same bytes on one machine.
///
/// Throws: Error{checkpoint} if the model file is missing, damaged or no byte model, or does not
///         say its number of layers; Error{usage} if prompt and tokens exceed the positions of the
///         model; Error{numerics} from sampling; what `output` throws.
void generate(const config::Config& config, const Output& output);

/// Gives `output` one JSON object in one line: the loss of generate.from's model over data.train, or
/// its last data.val_fraction, in nats per token, with the tokens, the perplexity and the length
/// of a sequence. On the device and with the threads of a training without tp and pp, the bits are
/// those of its evaluations on the same sequences and settings.
///
/// asked:  resolved but for the model, which its file gives.
/// Throws: as generate for the model; Error{data} for the data; Error{usage} for a mixture or
///         tokens of another tokenizer; Error{numerics} for a loss that is not finite.
void evaluate(const config::Config& asked, const Output& output);

/// Writes what config.exporting asks for, the same file as the run would write at its end, after
/// checking every checksum of the weights. Gives one line to `output`.
///
/// Throws: Error{checkpoint} naming what is missing, damaged or of another model, or the file that
///         cannot be written.
void export_checkpoint(const config::Config& config, const Output& output);

/// Writes the weights of config.importing's file as a checkpoint of step 0 without optimizer state:
/// float64 if the file has such weights, else float32. The folder appears whole or not at all.
/// Gives one line to `output`.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing, unknown or of another
///         shape than the file's model, or the folder that exists or cannot be written; as
///         train::model_of.
void import_checkpoint(const config::Config& config, const Output& output);

}  // namespace dtrain::commands
