// Settings of reports, checkpoints and the run folder.
#include "dtrain/base/text/number.h"
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr double kMaxProfiledSteps = 1000;  // trace viewers cannot open larger files

constexpr Setting kReportsSettings[] = {
    {"report.log_every", "--log-every", "N", "steps", "steps between progress reports; 0 is off",
     kTrain, FIELD(report.log_every), between(0, kMaxSteps)},
    {"report.eval_every", "--eval-every", "N", "steps",
     "steps between validation losses; 0: only at the end", kTrain, FIELD(report.eval_every),
     between(0, kMaxSteps), kRequires<kValidation>},
    {"report.eval_sequences", "--eval-sequences", "N|all", "sequences",
     "validation sequences per evaluation, spread evenly over the data; the same ones on any "
     "number of ranks",
     kTrain | kEvaluate, FIELD(report.eval_sequences),
     syntax("a number of sequences from 1 to 2^31, or all"), kRequires<kValidation>,
     kReportedWith<kValidation>},
    {"report.sample_every", "--sample-every", "N", "steps",
     "steps between texts that the model generates as it trains; 0 is off", kTrain,
     FIELD(report.sample_every), between(0, kMaxSteps)},
    {"report.sample_prompt", "--sample-prompt", "TEXT", "",
     "prompt of the samples; empty: generate a new document or line", kTrain,
     FIELD(report.sample_prompt), kRequires<kSamples>},
    {"report.tensorboard", "--tensorboard", "on|off", "",
     "also write the figures of metrics.jsonl to RUN/tensorboard, for tensorboard --logdir", kTrain,
     FIELD(report.tensorboard)},
    {"report.profile", "--profile", "N", "steps",
     "steps to trace, from the third since this launch on: prints where their time went and writes "
     "RUN/profile/trace.json for ui.perfetto.dev; 0 is off",
     kTrain, FIELD(report.profile), between(0, kMaxProfiledSteps)},

    {"checkpoint.every", "--checkpoint-every", "N|TIME|none", "",
     "steps (100) or time (90s, 10m, 1h) between checkpoints; 0: only of the last step, and when "
     "stopped early; none: only when stopped early",
     kTrain, FIELD(checkpoint.every),
     syntax("a number of steps (100), a time (90s, 10m, 1h30m, 1:30:00), or none, which saves only "
            "when stopped early")},
    {"checkpoint.keep_last", "--keep-last", "N", "checkpoints", "newest checkpoints that are kept",
     kTrain, FIELD(checkpoint.keep_last), between(2, kMaxSteps)},
    {"checkpoint.keep_every", "--keep-every", "N", "steps",
     "checkpoints at multiples of this are never removed; 0 is off", kTrain,
     FIELD(checkpoint.keep_every), between(0, kMaxSteps), kRequires<kCheckpoints>},
    {"checkpoint.keep_best", "--keep-best", "", "",
     "save at every new lowest validation loss, and never remove the checkpoint of the lowest",
     kTrain, FIELD(checkpoint.keep_best), kRequires<kValidation, kEvaluatesOften>},
    {"checkpoint.resume", "--resume", "auto|PATH|none", "",
     "resume from a checkpoint; auto: the latest complete one of the run folder, if any", kTrain,
     FIELD(checkpoint.resume), kNotCompared},
    {"checkpoint.new_data", "--new-data", "", "",
     "resume with the checkpoint's step, model and optimizer, and begin other data (--data, "
     "--global-batch, --seq-len, ...) at its first sample",
     kTrain, FIELD(checkpoint.new_data), kNotCompared},
    {"checkpoint.strict_resume", "--strict-resume", "", "",
     "stop if the newest checkpoint is damaged, instead of resuming from an older one", kTrain,
     FIELD(checkpoint.strict_resume), kNotCompared, kRequires<kResume>},
    {"checkpoint.init_from", "--init-from", "PATH", "",
     "initialise weights and sizes from a model file, checkpoint or run; take nothing else", kTrain,
     FIELD(checkpoint.init_from), kNotCompared},
    {"checkpoint.write_limit", "--checkpoint-write-limit", "X", "MB/s",
     "rate at which each rank writes checkpoints (200, or 200MB); 0: as fast as it goes", kTrain,
     FIELD(checkpoint.write_limit_mbps), at_least(0), kRequires<kCheckpoints>},

    {"run.dir", "--run-dir", "DIR", "",
     "folder for config.json, metrics.jsonl and the model; without it a new one, runs/NAME-N with "
     "the name of the data",
     kTrain, FIELD(run.dir), kNotCompared},
    {"run.overwrite", "--overwrite", "", "", "replace the run that the folder holds", kTrain,
     FIELD(run.overwrite), kNotCompared},
    {"run.time_limit", "--time-limit", "TIME", "",
     "save and stop after this time (90s, 10m, 1h30m, 1:30:00); 0: none", kTrain,
     FIELD(run.time_limit), kNotCompared, syntax(base::kDurationForms)},
};

}  // namespace

std::span<const Setting> reports() noexcept { return kReportsSettings; }

}  // namespace dtrain::config::tables
