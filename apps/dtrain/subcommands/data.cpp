// dtrain data prepare, tokenizer train, info and baseline.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/data/ngram.h"
#include "dtrain/data/prepare.h"
#include "dtrain/data/split.h"
#include "dtrain/data/tokens/token_file.h"
#include "ranks.h"
#include "subcommands/progress.h"
#include "tool.h"

namespace dtrain::app {
namespace {

constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kMostVocab = std::int64_t{1} << 31;

// Flags of the commands that read texts.
void add_text_flags(CLI::App& app, data::PrepareOptions& texts, const std::string& output) {
  app.add_option("INPUT", texts.inputs,
                 "a file, or a folder (hidden files are skipped); - for standard input");
  CLI::Option& file = *app.add_option("-o,--output", texts.output, output);
  require_value(*file.type_name("FILE")->required(), "name a file");
  CLI::Option& field =
      *app.add_option("--field", texts.field,
                      "read JSON lines, or a JSON array of objects, with the text in this field; "
                      "OUTER.INNER for a nested field");
  require_value(*field.type_name("NAME"), "name a field");
  app.add_flag("--skip-bad-lines", texts.skips_bad_records,
               "skip and count records that are not JSON or have no text in --field")
      ->needs(&field);
  app.add_flag("--as-text", texts.as_text, "read JSON inputs as plain text")->excludes(&field);
  const auto take_dataset = [&texts](const std::string& name) {
    constexpr std::string_view kWikitext = "wikitext";
    texts.is_wikitext = name == kWikitext;
    if (texts.is_wikitext) return;
    throw CLI::ValidationError("--dataset",
                               fmt::format("found \"{}\", but it must be {}", name, kWikitext));
  };
  app.add_option_function<std::string>("--dataset", take_dataset)
      ->type_name("wikitext")
      ->description("read raw WikiText files, with articles as documents")
      ->excludes(&field);
  app.add_flag("--overwrite", texts.overwrite, "replace the output if it exists");
  // Users try the flag of dtrain train, but inputs are positional here.
  const auto refuse = [](const std::string&) {
    throw CLI::ValidationError("unknown flag --data: give the inputs without a flag");
  };
  app.add_option_function<std::string>("--data", refuse)->group("")->trigger_on_parse();
}

// Trains a tokenizer; a bar shows how much text is read, since SentencePiece reports no progress.
data::TokenizerReport trained_with_bar(data::TokenizerTraining training) {
  ProgressBar bar;
  training.texts.on_progress = [&bar](const data::PrepareProgress& progress) {
    const bool is_read = progress.bytes == progress.total_bytes;
    bar.show(progress.bytes, progress.total_bytes, is_read ? "training" : "reading");
  };
  return data::train_tokenizer(training);
}

// Warns about inputs with markup, which the model would learn as text.
void note_markup(const data::PrepareOptions& options) {
  constexpr std::string_view kMarkup[] = {".csv", ".tsv", ".html", ".htm", ".xml", ".json"};
  if (!options.field.empty()) return;
  for (const std::string& input : options.inputs) {
    const std::string extension = std::filesystem::path(input).extension().string();
    if (std::ranges::count(kMarkup, extension) == 0) continue;
    base::log_info(
        "{}: read as plain text, including its markup; to train without markup, export plain text, "
        "or JSON with --field NAME",
        input);
  }
}

// Reports the inputs and records that were skipped.
void note_skipped(const std::string& output, const std::string& folders,
                  const data::RecordReport& records, const std::string& field) {
  if (!folders.empty()) base::log_info("{}: folders: {}", output, folders);
  if (const auto& places = records.without_text; places.count > 0) {
    base::log_info(
        "{}: skipped {} record{} without field \"{}\", or with null in it; the first: {}", output,
        places.count, places.count == 1 ? "" : "s", field, fmt::join(places.first, ", "));
  }
  if (const auto& places = records.not_utf8; places.count > 0) {
    base::log_info(
        "{}: kept {} text{} unchanged that {} not valid UTF-8; to convert the input, run iconv -f "
        "ENCODING -t UTF-8 before data prepare; the first: {}",
        output, places.count, places.count == 1 ? "" : "s", places.count == 1 ? "is" : "are",
        fmt::join(places.first, ", "));
  }
  if (const auto& places = records.bad; places.count > 0) {
    base::log_warning("{}: skipped {} bad line{}; the first: {}", output, places.count,
                      places.count == 1 ? "" : "s", fmt::join(places.first, ", "));
  }
}

// Reports a vocabulary that was assumed for tokens of other trainers, since the model adopts it.
void note_assumed_vocab(const data::PrepareReport& report) {
  if (report.assumed_from.empty()) return;
  const std::int64_t fewest = report.highest_token + 1;
  base::log_info("{}: assumed vocabulary {}, the usual one for {}; the highest token is {}{}",
                 report.output, report.assumed_vocab, report.assumed_from, report.highest_token,
                 fewest == report.assumed_vocab
                     ? ""
                     : fmt::format("; if the tokenizer has fewer tokens (vocab_size in nanoGPT's "
                                   "meta.pkl), give --vocab N, at least {}",
                                   fewest));
}

struct PrepareFlags {
  data::PrepareOptions options;
  std::string tokenizer;
  std::string document_end;
};

void add_prepare_flags(CLI::App& app, PrepareFlags& flags) {
  flags.options.threads = base::usable_cores();
  add_text_flags(
      app, flags.options,
      "token file to write; for a WikiText folder, the folder for its three token files");
  CLI::Option& tokenizer = *app.add_option("--tokenizer", flags.tokenizer,
                                           "a SentencePiece model, or a tokenizer.json of Hugging "
                                           "Face or its folder; without it every byte is a token");
  require_value(*tokenizer.type_name("PATH"), "name a file or folder");
  CLI::Option& end = *app.add_option("--document-end", flags.document_end,
                                     "the token of a tokenizer.json that follows each document, "
                                     "such as \"<|endoftext|>\"");
  require_value(*end.type_name("TOKEN")->needs(&tokenizer), "name a token");
  add_number(app, "--vocab", flags.options.vocab, 1, kMostVocab)
      ->description(
          "vocabulary size of other trainers' token files (default: GPT-2's or Llama 3's, as in "
          "nanoGPT and llm.c)");
  const auto take_type = [&flags](const std::string& name) {
    flags.options.token_type = data::number_type_named(name);
    if (flags.options.token_type) return;
    throw CLI::ValidationError("--token-type", fmt::format("found \"{}\", but it must be one of {}",
                                                           name, data::number_type_names()));
  };
  app.add_option_function<std::string>("--token-type", take_type)
      ->type_name("TYPE")
      ->description(
          "read little-endian tokens without a header: uint8 to uint64, or int8 to int64 (default "
          "for .bin: uint16 if the bytes are unambiguous)");
  add_number(app, "--threads", flags.options.threads, 1, kMostThreads)
      ->description("(default: all cores); does not affect the tokens");
}

int run_prepare(const PrepareFlags& flags) {
  require_one_process("data prepare");
  data::PrepareOptions options = flags.options;
  if (!flags.tokenizer.empty()) {
    options.tokenizer = data::read_tokenizer(flags.tokenizer, flags.document_end);
  }
  std::vector<data::PrepareReport> reports;
  try {
    const StopSignals signals;
    ProgressBar bar;
    options.check_stop = StopSignals::check;
    options.on_progress = [&bar](const data::PrepareProgress& progress) {
      StopSignals::check();
      bar.show(progress.bytes, progress.total_bytes, fmt::format("{} tokens", progress.num_tokens));
    };
    reports = data::prepare(options);
  } catch (const Stopped& stopped) {
    base::end_by_stop_signal(stopped.signal);
  }
  note_markup(options);
  for (const data::PrepareReport& report : reports) {
    note_assumed_vocab(report);
    note_skipped(report.output, report.notes, report.records, options.field);
    print(fmt::format("{}: {} tokens from {} file{}, {} document{}\n", report.output,
                      report.num_tokens, report.num_files, report.num_files == 1 ? "" : "s",
                      report.num_documents, report.num_documents == 1 ? "" : "s"));
  }
  return 0;
}

void add_training_flags(CLI::App& app, data::TokenizerTraining& training) {
  add_text_flags(app, training.texts,
                 "model to write, FILE.model; only wiki.train.raw of a WikiText folder is read");
  // At least 256 bytes, the unknown piece, the end-of-document piece, and some to learn.
  add_number(app, "--vocab-size", training.vocab, 260, 1'000'000)
      ->description("vocabulary size, including 256 byte tokens")
      ->required();
  app.add_option("--type", training.type, "(default: bpe)")
      ->type_name("bpe|unigram")
      ->check([](const std::string& type) {
        const bool is_known = type == "bpe" || type == "unigram";
        return is_known ? std::string()
                        : fmt::format("found \"{}\", but it must be bpe or unigram", type);
      });
}

int run_training(const data::TokenizerTraining& training) {
  require_one_process("data tokenizer train");
  const data::TokenizerReport report = trained_with_bar(training);
  note_skipped(training.texts.output, report.notes, report.records, training.texts.field);
  print(fmt::format("{}: {} tokens, trained on {} of {} bytes\n", training.texts.output,
                    report.vocab, report.num_used_bytes, report.num_bytes));
  return 0;
}

using base::ErrorKind;
using base::fail;

// The configuration without layout, machine and batch, which do not affect the validation text and
// may not suit this process.
config::Config baseline_config(const config::CommandLine& command_line) {
  config::Config config = config::load(config::with_deepspeed(command_line)).config;
  config.layout = {};
  config.machine = {};
  config.batch = {};
  return config::resolve(config::Command::train, config, {});
}

// Rejects tokens of a tokenizer, whose n-gram tables would not fit into memory.
void require_bytes(const std::string& path) {
  constexpr std::int64_t kBytes = 256;
  const auto vocab = data::vocab_of_data(path);
  if (!vocab || *vocab <= kBytes) return;
  fail(ErrorKind::data,
       "data baseline: baselines need byte tokens, but {} has tokens of a tokenizer (vocabulary "
       "{}): give its source text",
       path, *vocab);
}

int run_info(const std::string& path) {
  const auto file = data::TokenFile::open(path, data::kAnyVocab);
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

void add_data_tools(CLI::App& parent, Action& action) {
  add_tool(parent, "prepare",
           "make one token file from texts or JSON, also as .gz or .zst, or from token files of "
           "nanoGPT, llm.c, Megatron (.bin) and NumPy (.npy)",
           action, add_prepare_flags, run_prepare);
  CLI::App& tokenizer = *parent.add_subcommand("tokenizer", "train tokenizers");
  add_tool(tokenizer, "train",
           "train a lossless SentencePiece model on the same kinds of input as dtrain data prepare",
           action, add_training_flags, run_training);
  add_tool<std::string>(
      parent, "info",
      "print facts about a token file or a text: tokens, vocabulary, tokenizer, documents", action,
      [](CLI::App& app, std::string& path) {
        app.add_option("FILE", path, "token file or text")->required();
      },
      run_info);
}

int run_baseline(const config::CommandLine& command_line) {
  const config::Config config = baseline_config(command_line);
  if (config.data.train.empty()) fail(ErrorKind::usage, "data baseline: --data is missing");
  require_bytes(config.data.train);
  const data::Split split = data::open_split(data::split_options(config));
  const data::NgramLoss loss = data::evaluate_ngrams(split, config.report.eval_sequences.count);
  print(fmt::format("{{\"bigram\": {}, \"trigram\": {}, \"targets\": {}}}\n", loss.bigram,
                    loss.trigram, loss.num_targets));
  return 0;
}

}  // namespace dtrain::app
