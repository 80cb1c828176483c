#include "dtrain/base/error.h"
#include "dtrain/config/command_line.h"
#include "dtrain/config/resolve.h"
#include "dtrain/data/ngram.h"
#include "dtrain/data/split.h"
#include "dtrain/data/token_file.h"
#include "tool.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

// Ranks and batch do not decide which validation text a run is evaluated on, so that a run's
// configuration may say anything of them.
config::Config baseline_config(const config::CommandLine& command_line) {
  config::Config config = config::load(config::with_deepspeed(command_line)).config;
  config.layout = {};
  config.machine = {};
  config.batch = {};
  return config::resolve(config::Command::train, config, {});
}

// Models of bigrams of a tokenizer's tokens would not fit memory, and say nothing of bytes.
void check_has_bytes(const std::string& path) {
  constexpr std::int64_t kBytes = 256;
  const auto vocab = data::vocab_of_data(path);
  if (!vocab || *vocab <= kBytes) return;
  fail(ErrorKind::data,
       "data baseline: baselines need byte tokens, but {} has those of a tokenizer (a vocabulary "
       "of {}): give the text itself",
       path, *vocab);
}

struct InfoOptions {
  std::string file;
};

int run_info(const InfoOptions& options) {
  const auto file = data::TokenFile::open(options.file, data::kAnyVocab);
  const data::TokenDetails& details = file.details();
  const auto row = [](std::string_view name, const std::string& value) {
    return fmt::format("{:<16} {}\n", name, value);
  };
  const auto known = [](std::int64_t count) {
    return count > 0 ? std::to_string(count) : "unknown";
  };
  print(row("file", file.path()) + row("tokens", std::to_string(file.size())) +
        row("bytes per token", std::to_string(file.bytes_per_token())) +
        row("vocabulary", std::to_string(file.vocab())) + row("tokenizer", file.tokenizer()) +
        row("documents", known(details.num_documents)) + row("words", known(details.num_words)) +
        row("bytes of text", known(details.num_bytes)));
  return 0;
}

}  // namespace

int run_baseline(const config::CommandLine& command_line) {
  const config::Config config = baseline_config(command_line);
  if (config.data.train.empty()) fail(ErrorKind::usage, "data baseline: --data is missing");
  check_has_bytes(config.data.train);
  const data::Split split = data::open_split(data::split_options(config));
  const data::NgramLoss loss = data::evaluate_ngrams(split, config.report.eval_sequences.count);
  print(fmt::format("{{\"bigram\": {}, \"trigram\": {}, \"targets\": {}}}\n", loss.bigram,
                    loss.trigram, loss.num_targets));
  return 0;
}

void add_info(CLI::App& parent, Action& action) {
  add_tool<InfoOptions>(
      parent, "info",
      "print what a token file or a text holds: tokens, vocabulary, tokenizer, documents", action,
      [](CLI::App& app, InfoOptions& options) {
        app.add_option("FILE", options.file, "token file or text")->required();
      },
      run_info);
}

}  // namespace dtrain::app
