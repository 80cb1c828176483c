#include <cmath>
#include <nlohmann/json.hpp>

#include "dtrain/base/cpu_list.h"
#include "dtrain/base/error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/opened_model.h"
#include "dtrain/config/data_mixture.h"
#include "dtrain/config/resolve.h"
#include "dtrain/data/tokenizer/text_units.h"
#include "dtrain/job/job.h"
#include "dtrain/job/ranks.h"
#include "dtrain/train/evaluate.h"
#include "dtrain/train/model_tokenizer.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;

// The settings of an engine that trains nothing, and so has no state of an optimizer.
config::Config resolved(config::Config config, const config::ModelConfig& model) {
  config.model = model;
  config.train.optimizer = config::UpdateRule::sgd;
  config.train.momentum = 0;
  return config::resolve(
      config::Command::evaluate, config,
      {.usable_cores = base::usable_cores(), .devices = {config.machine.device.kind}});
}

// All of --data, or its end.
data::Samples opened_samples(const config::Config& config) {
  const std::string& file = config.data.train;
  if (config::parse_mixture(file).size() > 1) {
    base::fail(ErrorKind::usage, "--data {}: evaluate takes one file, not a mixture", file);
  }
  data::SplitOptions options = data::split_options(config);
  if (options.val_fraction == 0) options.validation = file;
  return data::open_split(options).validation;
}

// Equal shapes say nothing of what a token means.
void check_tokenizer(const OpenedModel& opened, const data::TokenFile& file) {
  const std::string saved = train::saved_tokenizer(opened.path);
  if (saved.empty() || !file.knows_tokenizer() || file.tokenizer() == saved) return;
  base::fail(ErrorKind::usage, "--data {} has tokens of {}, the model was trained on those of {}",
             file.path(), file.tokenizer(), saved);
}

std::string result_text(double loss, std::int64_t tokens, const data::TextUnits& units) {
  nlohmann::ordered_json result{{"loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", tokens}};
  if (const auto bits = units.bits_per_byte(loss)) result["bits_per_byte"] = *bits;
  if (const auto words = units.perplexity_per_word(loss)) result["perplexity_per_word"] = *words;
  return result.dump() + "\n";
}

}  // namespace

void evaluate(const config::Config& asked, const Output& output) {
  const OpenedModel opened = open_model(asked.generate);
  const config::Config config = resolved(asked, opened.settings);
  const data::Samples samples = opened_samples(config);
  check_tokenizer(opened, samples.file());
  (void)job::run_ranks(config, [&](const base::RankEnv&, const job::JoinWorld& join) {
    job::Job job(config, join());
    const model::Model& model = job.whole_model();
    checkpoint::ArenaSource source(model.parameters,
                                   opened.read_weights(model, job.engine().precision().master));
    job.engine().load_weights(source);
    const data::EvaluationSequences sequences(samples, config.report.eval_sequences.count);
    const double loss =
        train::evaluate(job.engine(), sequences, config.batch.microbatch, {}).value();
    if (!std::isfinite(loss)) {
      base::fail(ErrorKind::numerics, "the loss of {} on {} is not finite", opened.path,
                 samples.file().path());
    }
    output(result_text(loss, sequences.tokens(), data::units_of(samples.file())));
    return 0;
  });
}

}  // namespace dtrain::commands
