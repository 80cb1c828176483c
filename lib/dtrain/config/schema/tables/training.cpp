// Settings of the batch, the optimizer, its schedule and its guards.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

// A checkpoint of a run without momentum holds no momentum state to resume with.
constexpr ResumeRule kMomentumRule = [](const Config& now, const Config& saved) {
  if (!kSgd.is_met(now)) return OnResume::free;
  return saved.train.momentum == 0 ? OnResume::fixed : OnResume::reported;
};

// A spike guard changes bits only if it skips updates.
constexpr ResumeRule kSpikeGuardRule = [](const Config& now, const Config& saved) {
  return kSkipsSpikes(now) || kSkipsSpikes(saved) ? OnResume::reported : OnResume::free;
};

constexpr Setting kTrainingSettings[] = {
    {"batch.global", "--global-batch", "N", "sequences",
     "sequences per optimizer step over all ranks; 0: microbatch x grad-accum x dp, or 8 if "
     "neither is given",
     kTrain, FIELD(batch.global), between(0, kMaxGlobalBatch), kNeedsNewData},
    {"batch.microbatch", "--microbatch", "N", "sequences",
     "sequences that a rank processes at once; changes rounding; 0: with --global-batch, the "
     "largest number up to 8 that divides a rank's share and fits --memory-limit and the free "
     "memory, else 1",
     kTrain | kEvaluate, FIELD(batch.microbatch), between(0, kMaxMicrobatch), kReported,
     kChangesBits},
    {"batch.grad_accum", "--grad-accum", "N", "microbatches",
     "microbatches per rank and step; 0: derived from --global-batch and --microbatch, else 1, or "
     "the number of stages when training a pipeline",
     kEngine, FIELD(batch.grad_accum), between(0, kMaxMicrobatch),
     changes_bits(kHasOwnSummationOrder)},

    {"train.steps", "--steps", "N", "steps", "optimizer steps to train", kTrain, FIELD(train.steps),
     between(1, kMaxSteps), kReportedWith<kFallingRate>},
    {"train.epochs", "--epochs", "X", "passes",
     "passes over the training data; sets --steps; 0: --steps decides", kTrain, FIELD(train.epochs),
     between(0, kMaxSteps)},
    {"train.seed", "--seed", "N", "",
     "seed of initial weights, sample order, dropout and generated text", kTrain | kGenerate,
     FIELD(train.seed), kNeedsNewData},
    {"train.lr", "--lr", "X", "",
     "learning rate after the warm-up; auto: derived from the model's width", kTrain,
     FIELD(train.lr), at_least(0), kReported},
    {"train.weight_decay", "--weight-decay", "X", "",
     "weight decay: decoupled from the gradient with adamw, added to it with sgd", kTrain,
     FIELD(train.weight_decay), at_least(0), kReported},
    {"train.beta1", "--beta1", "X", "", "AdamW beta1: decay of the first moment", kTrain,
     FIELD(train.beta1), from_to_below(0, 1), kReportedWith<kAdamW>, kRequires<kAdamW>},
    {"train.beta2", "--beta2", "X", "", "AdamW beta2: decay of the second moment", kTrain,
     FIELD(train.beta2), from_to_below(0, 1), kReportedWith<kAdamW>, kRequires<kAdamW>},
    {"train.eps", "--eps", "X", "", "AdamW epsilon: added to the root of the second moment", kTrain,
     FIELD(train.eps), above(0, 1), kReportedWith<kAdamW>, kRequires<kAdamW>},
    {"train.momentum", "--momentum", "X", "", "SGD momentum", kTrain, FIELD(train.momentum),
     from_to_below(0, 1), kMomentumRule, kRequires<kSgd>},
    {"train.grad_clip", "--grad-clip", "X", "",
     "maximum global gradient norm, by clipping; 0 is off", kTrain, FIELD(train.grad_clip),
     at_least(0), kReported},
    {"train.schedule", "--schedule", "NAME", "",
     "shape of the learning rate after the warm-up; wsd: stable, then a linear decay", kTrain,
     FIELD(train.schedule), one_of(kSchedules), kReported},
    {"train.warmup_steps", "--warmup-steps", "N", "steps",
     "initial steps over which the learning rate rises linearly; auto: a twentieth of --steps",
     kTrain, FIELD(train.warmup_steps), between(0, kMaxSteps), kReported},
    {"train.decay_steps", "--decay-steps", "N", "steps",
     "final steps over which schedule wsd decays; 0: a tenth of --steps, rounded up, but at most "
     "the steps after the warm-up",
     kTrain, FIELD(train.decay_steps), between(0, kMaxSteps), kReportedWith<kDecay>,
     kRequires<kDecay>},
    {"train.min_lr", "--min-lr", "X", "",
     "learning rate that linear, cosine and wsd schedules approach at their end; auto: a tenth of "
     "--lr",
     kTrain, FIELD(train.min_lr), at_least(0), kReported, kRequires<kFallingRate>},
    {"train.optimizer", "--optimizer", "NAME", "", "optimizer: adamw, or sgd with momentum", kTrain,
     FIELD(train.optimizer), one_of(kUpdateRules), kFixed},
    {"train.on_nonfinite", "--on-nonfinite", "NAME", "",
     "what to do when a loss or gradient is not finite: stop, or skip the update", kTrain,
     FIELD(train.on_nonfinite), one_of(kOnNonfinite), kReported},
    {"train.max_skipped", "--max-skipped", "N", "steps",
     "maximum number of consecutive skipped updates (--on-nonfinite or --spike-guard skip, "
     "overflows of float16); one more ends the run",
     kTrain, FIELD(train.max_skipped), between(0, kMaxSteps), kRequires<kSkips>},
    {"train.patience", "--patience", "N", "evaluations",
     "early stopping: end the run after this many evaluations in a row without a new lowest "
     "validation loss; 0 is off",
     kTrain, FIELD(train.patience), between(0, kMaxSteps), kRequires<kValidation, kEvaluatesOften>},
    {"train.spike_guard", "--spike-guard", "NAME", "",
     "what to do when the loss or the gradient norm is far above its recent average: nothing "
     "(off), warn, or skip the update",
     kTrain, FIELD(train.spike_guard), one_of(kSpikeGuards), kSpikeGuardRule},
    {"train.spike_threshold", "--spike-threshold", "Z", "standard deviations",
     "a loss or gradient norm is a spike if its logarithm exceeds the recent mean by more than "
     "this many standard deviations",
     kTrain, FIELD(train.spike_threshold), above(0, kMaxSteps), kSpikeGuardRule,
     kRequires<kGuardsSpikes>},
    {"train.no_decay", "--no-decay", "NAME,...", "",
     "parameters without weight decay: names, patterns with *, or the kinds norms, biases, "
     "embeddings",
     kTrain, FIELD(train.no_decay), kReported},
    {"train.freeze", "--freeze", "NAME,...", "", "parameters that keep their initial values",
     kTrain, FIELD(train.freeze), kReported},
};

}  // namespace

std::span<const Setting> training() noexcept { return kTrainingSettings; }

}  // namespace dtrain::config::tables
