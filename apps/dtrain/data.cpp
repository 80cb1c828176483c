#include "commands.h"
#include "data_prepare.h"
#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/config/command_line.h"
#include "dtrain/config/resolve.h"
#include "dtrain/data/ngram.h"
#include "dtrain/data/split.h"
#include "dtrain/data/token_file.h"
#include "fitted_text.h"
#include "help.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

// Ranks and batch do not decide which validation text a run is evaluated on, so that a run's
// configuration may say anything of them.
config::Config baseline_config(const config::CommandLine& command_line) {
  config::Config config = config::load(command_line).config;
  config.layout = {};
  config.machine = {};
  config.batch = {};
  return config::resolve(config::Command::train, config, {});
}

// Its flags are those of train.
config::CommandLine parse_baseline(const Arguments& arguments) {
  try {
    return config::parse_command_line(config::Command::train, arguments);
  } catch (const base::Error& error) {
    constexpr std::string_view kTrain = "dtrain train: ";
    const std::string_view message = error.what();
    if (!message.starts_with(kTrain)) throw;
    fail(error.kind(), "dtrain data baseline: {}", message.substr(kTrain.size()));
  }
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

int run_baseline(const Arguments& arguments) {
  const auto command_line = parse_baseline(arguments);
  if (command_line.help) {
    print_help(data_help());
    return 0;
  }
  const config::Config config = baseline_config(command_line);
  if (config.data.train.empty()) fail(ErrorKind::usage, "data baseline: --data is missing");
  check_has_bytes(config.data.train);
  const data::Split split = data::open_split(data::split_options(config));
  const data::NgramLoss loss = data::evaluate_ngrams(split, config.report.eval_sequences.count);
  print(fmt::format("{{\"bigram\": {}, \"trigram\": {}, \"targets\": {}}}\n", loss.bigram,
                    loss.trigram, loss.num_targets));
  return 0;
}

int run_info(const Arguments& arguments) {
  if (arguments.size() != 1) {
    fail(ErrorKind::usage, "data info takes one file; found {} arguments", arguments.size());
  }
  if (is_help(arguments.front())) {
    print_help(data_help());
    return 0;
  }
  const auto file = data::TokenFile::open(arguments.front(), data::kAnyVocab);
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

int run_data(const Arguments& arguments) {
  const std::string action = arguments.empty() ? "" : arguments[0];
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (action == "prepare") return run_prepare(rest);
  if (action == "tokenizer") return run_tokenizer(rest);
  if (action == "baseline") return run_baseline(rest);
  if (action == "info") return run_info(rest);
  if (is_help(action)) {
    print_help(data_help());
    return 0;
  }
  if (action.empty()) {
    fail(ErrorKind::usage,
         "dtrain data needs an action: prepare, tokenizer, baseline or info; dtrain data --help");
  }
  constexpr std::string_view kActions[] = {"prepare", "tokenizer", "baseline", "info"};
  fail(ErrorKind::usage,
       "dtrain data: found \"{}\", but it must be prepare, tokenizer, baseline or info{}", action,
       base::did_you_mean(base::nearest(action, kActions)));
}

}  // namespace dtrain::app
