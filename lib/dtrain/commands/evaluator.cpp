#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/cpu_list.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/internal/opened_model.h"
#include "dtrain/config/resolve/notices.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/data/loader.h"
#include "dtrain/data/split.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/job/job.h"
#include "dtrain/job/ranks.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;

// Settings without optimizer state, since nothing is trained.
config::Config resolved(config::Config config, const config::ModelConfig& model) {
  config.model = model;
  config.train.optimizer = config::UpdateRule::sgd;
  config.train.momentum = 0;
  return config::resolve(
      config::Command::evaluate, config,
      {.usable_cores = base::usable_cores(), .devices = {config.machine.device.kind}});
}

data::TokenFile opened_file(const config::Config& config, const std::string& weights) {
  const std::string& data = config.data.train;
  const std::vector<config::WeightedFile> files = config::parse_mixture(data);
  if (files.size() > 1) {
    base::fail(ErrorKind::usage, "--data {}: evaluate takes one file, not a mixture", data);
  }
  const std::string& path = files.front().path;
  data::check_vocab_of_data(path, {.flag = fmt::format("--from {}", config.generate.from),
                                   .weights = weights,
                                   .tokens = config.model.vocab});
  return data::TokenFile::open(path, config.model.vocab);
}

// All of --data, or its last --val-fraction. weights: the model file or checkpoint.
data::Samples opened_samples(const config::Config& config, const std::string& weights) {
  const auto file = std::make_shared<const data::TokenFile>(opened_file(config, weights));
  const double fraction = config.data.val_fraction;
  const data::TokenRange range{
      .begin = fraction == 0 ? 0 : data::validation_begin(file->size(), fraction),
      .end = file->size()};
  data::Samples samples(file, range, config.data.seq_len);
  if (samples.size() == 0) {
    base::fail(ErrorKind::data,
               "data file '{}' has {} tokens{}, an evaluation reads at least --seq-len + 1 = {}; "
               "{}lower --seq-len or give more data",
               file->path(), range.end - range.begin, fraction == 0 ? "" : " within --val-fraction",
               samples.seq_len() + 1, fraction == 0 ? "" : "raise --val-fraction, ");
  }
  return samples;
}

void check_tokenizer(const OpenedModel& opened, const data::TokenFile& file,
                     const std::string& from) {
  const std::string mismatch =
      train::check_tokenizer_of_data({.flag = fmt::format("--from {}", from),
                                      .weights = opened.path,
                                      .vocab = opened.settings.vocab,
                                      .data = fmt::format("data file '{}'", file.path()),
                                      .tokenizer = file.tokenizer()});
  if (!mismatch.empty()) base::fail(ErrorKind::data, "{}", mismatch);
}

std::string result_text(double loss, const data::EvaluationSequences& sequences,
                        const data::Samples& samples) {
  nlohmann::ordered_json result{{"loss", loss},
                                {"perplexity", std::exp(loss)},
                                {"tokens", sequences.tokens()},
                                {"seq_len", samples.seq_len()}};
  const data::TextUnits units = data::units_of(samples.file());
  if (const auto bits = units.bits_per_byte(loss)) result["bits_per_byte"] = *bits;
  if (const auto words = units.perplexity_per_word(loss)) result["perplexity_per_word"] = *words;
  return result.dump() + "\n";
}

}  // namespace

void evaluate(const config::Config& given, const Output& output) {
  const OpenedModel opened = open_model(given.generate);
  const config::Config config = resolved(given, opened.settings);
  if (const std::string line = config::positions_warning(config); !line.empty()) {
    base::log_warning("{}", line);
  }
  const data::Samples samples = opened_samples(config, opened.path);
  check_tokenizer(opened, samples.file(), given.generate.from);
  (void)job::run_ranks(config, [&](const base::RankEnv&, const job::JoinWorld& join) {
    job::Job job(config, join());
    const model::Model& model = job.whole_model();
    checkpoint::ArenaSource source(model.parameters,
                                   opened.read_weights(model, job.engine().precision().master));
    job.engine().whole_model().load_weights(source);
    const data::EvaluationSequences sequences(samples, config.report.eval_sequences.count);
    const double loss = job.engine().evaluate(sequences, config.batch.microbatch).value();
    if (!std::isfinite(loss)) {
      base::fail(ErrorKind::numerics, "the loss of {} on {} is not finite", opened.path,
                 samples.file().path());
    }
    output(result_text(loss, sequences, samples));
    return 0;
  });
}

}  // namespace dtrain::commands
