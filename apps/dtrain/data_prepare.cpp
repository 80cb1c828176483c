#include "data_prepare.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/nearest.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/stop_signals.h"
#include "dtrain/data/prepare.h"
#include "dtrain/data/tokenizer/train.h"
#include "fitted_text.h"
#include "help.h"
#include "parse_words.h"
#include "progress_bar.h"
#include "ranks.h"
#include "stop_signals.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kMostVocab = std::int64_t{1} << 31;

/// The words of a command that reads texts.
class TextCommand {
 public:
  explicit TextCommand(std::string name) : name_(std::move(name)) {
    app_.set_help_flag();
    app_.add_flag("-h,--help", help_);
    app_.add_option("inputs", texts_.inputs);
    app_.add_option("-o,--output", texts_.output);
    app_.add_option("--field", texts_.field);
    app_.add_option("--dataset", dataset_);
    app_.add_flag("--overwrite", texts_.overwrite);
  }

  [[nodiscard]] CLI::App& app() { return app_; }

  /// Returns false where help was asked for, and given.
  [[nodiscard]] bool parse(const Arguments& arguments) {
    // The flag of training, which the inputs here do not have.
    if (std::ranges::find(arguments, "--data") != arguments.end()) {
      fail(ErrorKind::usage, "{}: unknown flag --data: name the inputs without a flag", name_);
    }
    parse_words(app_, arguments, name_, "dtrain data --help");
    if (help_) {
      print_help(data_help());
      return false;
    }
    require_one_process(name_);
    if (texts_.output.empty()) {
      fail(ErrorKind::usage, "{}: --output is missing: name the file to write", name_);
    }
    check_dataset();
    return true;
  }

  [[nodiscard]] const data::PrepareOptions& texts() const { return texts_; }

  /// The number that a flag has, which must be from `lowest` to `highest`.
  void check_number(std::string_view flag, std::int64_t found, std::int64_t lowest,
                    std::int64_t highest) const {
    if (lowest <= found && found <= highest) return;
    fail(ErrorKind::usage, "{}: {}: found {}, but it must be {} to {}", name_, flag, found, lowest,
         highest);
  }

 private:
  void check_dataset() {
    constexpr std::string_view kWikitext = "wikitext";
    texts_.is_wikitext = dataset_ == kWikitext;
    if (!dataset_.empty() && !texts_.is_wikitext) {
      fail(ErrorKind::usage, "{}: --dataset: found \"{}\", but it must be {}", name_, dataset_,
           kWikitext);
    }
    if (texts_.is_wikitext && !texts_.field.empty()) {
      fail(ErrorKind::usage,
           "{}: --field is for JSON lines, --dataset wikitext for raw files; "
           "give one of them",
           name_);
    }
  }

  std::string name_;
  CLI::App app_;
  data::PrepareOptions texts_;
  std::string dataset_;
  bool help_ = false;
};

// The bar shows how much of the texts is read; how far SentencePiece is then, nobody knows.
data::TokenizerReport trained_with_bar(data::TokenizerTraining training) {
  ProgressBar bar;
  training.texts.on_progress = [&bar](const data::PrepareProgress& progress) {
    const bool is_read = progress.bytes == progress.total_bytes;
    bar.show(progress.bytes, progress.total_bytes, is_read ? "training" : "reading");
  };
  return data::train_tokenizer(training);
}

// Tags and separators are as good a text as any, and seldom what a model is to learn.
void note_markup(const data::PrepareOptions& options) {
  constexpr std::string_view kMarkup[] = {".csv", ".tsv", ".html", ".htm", ".xml", ".json"};
  if (!options.field.empty()) return;
  for (const std::string& input : options.inputs) {
    const std::string extension = std::filesystem::path(input).extension().string();
    if (std::ranges::find(kMarkup, extension) == std::end(kMarkup)) continue;
    base::log_info(
        "{}: read as plain text, with its markup; to train on its texts alone, export them as "
        "plain text or JSON lines first",
        input);
  }
}

// Mistakes that look like a wish.
void note_paths(const data::PrepareOptions& options) {
  const std::set<std::string> different(options.inputs.begin(), options.inputs.end());
  for (const std::string& input : different) {
    const auto count = std::ranges::count(options.inputs, input);
    if (count > 1) base::log_info("{}: given {} times, and as often in the output", input, count);
  }
  if (options.output.ends_with(".gz") || options.output.ends_with(".zst")) {
    base::log_info("{}: a token file is not compressed, whatever its name", options.output);
  }
}

// A model gets the vocabulary of its data, so a choice for the user must not pass unseen.
void note_assumed_vocab(const data::PrepareReport& report) {
  if (report.assumed_from.empty()) return;
  const std::int64_t fewest = report.highest_token + 1;
  base::log_info("{}: vocabulary {} assumed, the usual one of {}; the highest token is {}{}",
                 report.output, report.assumed_vocab, report.assumed_from, report.highest_token,
                 fewest == report.assumed_vocab
                     ? ""
                     : fmt::format("; if its tokenizer has fewer (vocab_size in nanoGPT's "
                                   "meta.pkl), give --vocab N, at least {}",
                                   fewest));
}

}  // namespace

int run_prepare(const Arguments& arguments) {
  TextCommand command("data prepare");
  std::string tokenizer;
  std::int64_t threads = base::usable_cores();
  std::int64_t vocab = 0;
  command.app().add_option("--tokenizer", tokenizer);
  add_count(command.app(), "--threads", [&](std::int64_t count) { threads = count; });
  const CLI::Option* vocab_flag =
      add_count(command.app(), "--vocab", [&](std::int64_t count) { vocab = count; });
  if (!command.parse(arguments)) return 0;
  command.check_number("--threads", threads, 1, kMostThreads);
  if (!vocab_flag->empty()) command.check_number("--vocab", vocab, 1, kMostVocab);

  data::PrepareOptions options = command.texts();
  note_markup(options);
  note_paths(options);
  options.threads = threads;
  options.vocab = vocab;
  if (!tokenizer.empty()) options.tokenizer = data::read_tokenizer(tokenizer);
  std::vector<data::PrepareReport> reports;
  try {
    const StopSignals signals;
    ProgressBar bar;
    options.on_progress = [&bar](const data::PrepareProgress& progress) {
      StopSignals::check();
      bar.show(progress.bytes, progress.total_bytes, fmt::format("{} tokens", progress.num_tokens));
    };
    reports = data::prepare(options);
  } catch (const Stopped& stopped) {
    base::end_by_stop(stopped.signal);
  }
  for (const data::PrepareReport& report : reports) {
    note_assumed_vocab(report);
    print(fmt::format("{}: {} tokens from {} file{}, {} document{}\n", report.output,
                      report.num_tokens, report.num_files, report.num_files == 1 ? "" : "s",
                      report.num_documents, report.num_documents == 1 ? "" : "s"));
  }
  return 0;
}

int run_tokenizer(const Arguments& arguments) {
  constexpr std::string_view kActions[] = {"train"};
  const std::string action = arguments.empty() ? "" : arguments[0];
  if (is_help(action)) {
    print_help(data_help());
    return 0;
  }
  if (action.empty()) {
    fail(ErrorKind::usage, "data tokenizer needs an action: train; dtrain data --help");
  }
  if (action != kActions[0]) {
    fail(ErrorKind::usage, "data tokenizer: found \"{}\", but it must be train{}", action,
         base::did_you_mean(base::nearest(action, kActions)));
  }
  TextCommand command("data tokenizer train");
  data::TokenizerTraining training;
  const CLI::Option* vocab_flag =
      add_count(command.app(), "--vocab-size", [&](std::int64_t count) { training.vocab = count; });
  command.app().add_option("--type", training.type);
  if (!command.parse(Arguments(arguments.begin() + 1, arguments.end()))) return 0;
  if (vocab_flag->empty()) {
    fail(ErrorKind::usage,
         "data tokenizer train: --vocab-size is missing: name the number of tokens, as 8000");
  }
  // The 256 bytes, the unknown piece and the one that ends documents, and something to learn.
  command.check_number("--vocab-size", training.vocab, 260, 1'000'000);
  if (training.type != "bpe" && training.type != "unigram") {
    fail(ErrorKind::usage,
         "data tokenizer train: --type: found \"{}\", but it must be bpe or "
         "unigram",
         training.type);
  }
  training.texts = command.texts();
  const data::TokenizerReport report = trained_with_bar(training);
  print(fmt::format("{}: {} tokens, trained on {} of {} bytes\n", training.texts.output,
                    report.vocab, report.num_used_bytes, report.num_bytes));
  return 0;
}

}  // namespace dtrain::app
