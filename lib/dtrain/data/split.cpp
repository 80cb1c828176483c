#include "dtrain/data/split.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/config/schema/schema.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/data/tokenizer/stored_tokenizer.h"

namespace dtrain::data {

using base::ErrorKind;

Samples::Samples(std::shared_ptr<const TokenFile> file, TokenRange range, std::int64_t seq_len)
    : file_(std::move(file)), range_(range), seq_len_(seq_len) {
  DTRAIN_CHECK(seq_len >= 1, "seq_len {}", seq_len);
  DTRAIN_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= file_->size(),
               "tokens [{}, {}) of {}", range.begin, range.end, file_->size());
}

std::int64_t Samples::size() const noexcept {
  return std::max<std::int64_t>(range_.end - range_.begin - 1, 0) / seq_len_;
}

void Samples::copy(std::int64_t sample, std::span<std::int64_t> inputs,
                   std::span<std::int64_t> targets, std::int64_t shift) const {
  const auto length = static_cast<std::size_t>(seq_len_);
  DTRAIN_CHECK(0 <= sample && sample < size(), "sample {} of {}", sample, size());
  DTRAIN_CHECK(inputs.size() == length && targets.size() == length);
  DTRAIN_CHECK(0 <= shift && shift < seq_len_, "shift {} of {}", shift, seq_len_);
  const std::int64_t last_begin = range_.end - 1 - seq_len_;
  const std::int64_t begin = std::min(range_.begin + sample * seq_len_ + shift, last_begin);
  file_->copy(begin, inputs);
  file_->copy(begin + 1, targets);
}

std::int64_t Mixture::size() const noexcept {
  std::int64_t size = 0;
  for (const Source& source : sources_) size += source.samples.size();
  return size;
}

SourceOrder Mixture::order() const {
  static_assert(config::kMaxMixtureFiles == SourceOrder::kBlock);
  std::vector<double> weights;
  for (const Source& source : sources_) weights.push_back(source.weight);
  return SourceOrder(weights);
}

const TokenFile& Mixture::tokenized_file() const noexcept {
  const auto knows = [](const Source& source) { return source.samples.file().knows_tokenizer(); };
  const auto found = std::ranges::find_if(sources_, knows);
  return (found == sources_.end() ? sources_.front() : *found).samples.file();
}

std::vector<double> epochs_of(const Mixture& mixture, double samples) {
  const SourceOrder order = mixture.order();
  std::vector<double> epochs;
  for (std::size_t i = 0; i < mixture.sources().size(); ++i) {
    const double share = static_cast<double>(order.share(i)) / SourceOrder::kBlock;
    epochs.push_back(share * samples / static_cast<double>(mixture.sources()[i].samples.size()));
  }
  return epochs;
}

namespace {

/// part: "for training" or "for validation". advice: how to give it more tokens; may be empty.
void check_has_sample(const Samples& samples, std::string_view part, std::string_view advice = "") {
  if (samples.size() > 0) return;
  const TokenRange range = samples.range();
  fail(ErrorKind::data,
       "data file '{}' has {} tokens {}, less than one sequence of data.seq_len + 1 = {} tokens; "
       "{}lower --seq-len or give more data",
       samples.file().path(), range.end - range.begin, part, samples.seq_len() + 1, advice);
}

// Prefixes errors with the setting: messages about training data read the same otherwise.
std::shared_ptr<const TokenFile> open_validation(const SplitOptions& options) {
  if (options.validation.find(',') != std::string::npos && !base::path_exists(options.validation)) {
    fail(ErrorKind::usage,
         "--val-data {}: takes one file, not a mixture; merge several files with dtrain data "
         "prepare FILE... --output FILE.dtok",
         options.validation);
  }
  try {
    return std::make_shared<const TokenFile>(TokenFile::open(options.validation, options.vocab));
  } catch (const base::Error& error) {
    fail(error.kind(), "--val-data: {}", error.what());
  }
}

std::string tokenizer_text(const TokenFile& file) {
  if (file.knows_tokenizer()) return file.tokenizer();
  return fmt::format("an unknown one with vocabulary {}", file.vocab());
}

// Token files of other trainers and of versions 1 and 2 do not record a tokenizer. Theirs can match
// another file's only if the vocabularies are equal.
void check_same_tokenizer(const TokenFile& first, const TokenFile& other) {
  const bool are_known = first.knows_tokenizer() && other.knows_tokenizer();
  if (are_known ? first.tokenizer() == other.tokenizer() : first.vocab() == other.vocab()) return;
  fail(ErrorKind::data,
       "data files '{}' and '{}' have tokens of different tokenizers: {} and {}; prepare both with "
       "one tokenizer",
       first.path(), other.path(), tokenizer_text(first), tokenizer_text(other));
}

/// Opens and checks the files of data.train, each without the part held out by val_fraction.
Mixture open_training(const SplitOptions& options) {
  const std::vector<config::WeightedFile> files = config::parse_mixture(options.train);
  if (files.size() > 1 && options.val_fraction > 0) {
    fail(
        ErrorKind::usage,
        "--val-fraction takes the end of one file, but --data names {} files; give --val-data FILE",
        files.size());
  }
  // The default vocabulary is unknown unless every file can be read (vocab_of_data), so a file that
  // cannot be read is reported before a vocabulary that does not fit.
  if (files.size() > 1) {
    for (const config::WeightedFile& each : files) (void)TokenFile::open(each.path, kAnyVocab);
  }
  std::vector<Mixture::Source> sources;
  std::shared_ptr<const TokenFile> reference;  // the first with a known tokenizer, else the first
  for (const config::WeightedFile& each : files) {
    const auto file = std::make_shared<const TokenFile>(TokenFile::open(each.path, options.vocab));
    const std::int64_t cut = validation_begin(file->size(), options.val_fraction);
    sources.push_back({Samples(file, {0, cut}, options.seq_len), each.weight});
    check_has_sample(sources.back().samples, "for training",
                     options.val_fraction > 0 ? "lower --val-fraction, " : "");
    if (reference != nullptr) check_same_tokenizer(*reference, *file);
    if (reference == nullptr || !reference->knows_tokenizer()) reference = file;
  }
  return Mixture(std::move(sources));
}

// Calls visit(file) for the files of data.train until it returns false. Returns false if a file
// cannot be read.
template <typename Visit>
bool visit_files(const std::string& train, Visit visit) {
  try {
    for (const config::WeightedFile& each : config::parse_mixture(train)) {
      if (!visit(TokenFile::open(each.path, kAnyVocab))) break;
    }
    return true;
  } catch (const base::StorageError&) {
    throw;
  } catch (const base::Error&) {
    return false;
  }
}

constexpr std::string_view kSeparator = "; validation: ";
constexpr std::string_view kWithoutChecksum = " samples, fingerprint ";

std::string describe(const Samples& samples, std::uint64_t checksum) {
  if (samples.size() == 0) return "none";
  const std::int64_t width = samples.file().bytes_per_token();
  return fmt::format("{} samples, tokens {} to {} of a file with xxh3 {:016x}{}", samples.size(),
                     samples.range().begin, samples.range().end, checksum,
                     width == 1 ? "" : fmt::format(" ({} bytes per token)", width));
}

/// Describes several files, each with its share of SourceOrder::kBlock samples.
std::string describe(const Mixture& mixture) {
  const SourceOrder order = mixture.order();
  std::string text;
  for (std::size_t i = 0; i < mixture.sources().size(); ++i) {
    const Samples& samples = mixture.sources()[i].samples;
    text += fmt::format("{}{} of {}: {}", i == 0 ? "mixture of " : " and ", order.share(i),
                        SourceOrder::kBlock, describe(samples, samples.file().checksum()));
  }
  return text;
}

}  // namespace

SplitOptions split_options(const config::Config& config) {
  return {.train = config.data.train,
          .validation = config.data.validation,
          .val_fraction = config.data.val_fraction,
          .seq_len = config.data.seq_len,
          .vocab = config.model.vocab};
}

std::string missing_file(const SplitOptions& options) {
  std::vector<config::WeightedFile> files = config::mixture_or_file(options.train);
  files.push_back({options.validation, 1});
  const auto missing = std::ranges::find_if(files, [](const config::WeightedFile& file) {
    return !file.path.empty() && !base::path_exists(file.path);
  });
  return missing == files.end() ? "" : missing->path;
}

std::int64_t validation_begin(std::int64_t num_tokens, double val_fraction) {
  return num_tokens - static_cast<std::int64_t>(static_cast<double>(num_tokens) * val_fraction);
}

Split open_split(const SplitOptions& options) {
  const bool has_file = !options.validation.empty();
  DTRAIN_CHECK(options.val_fraction >= 0 && options.val_fraction < 1);
  DTRAIN_CHECK(!has_file || options.val_fraction == 0);
  Mixture train = open_training(options);
  const Samples& first = train.first();
  Samples validation(first.shared_file(), {first.range().end, first.file().size()},
                     options.seq_len);
  if (has_file) {
    const auto other = open_validation(options);
    validation = Samples(other, {0, other->size()}, options.seq_len);
    check_same_tokenizer(train.tokenized_file(), *other);
  }
  if (has_file || options.val_fraction > 0) {
    check_has_sample(validation, "for validation", has_file ? "" : "raise --val-fraction, ");
  }
  return {std::move(train), std::move(validation)};
}

std::int64_t steps_of_epochs(const config::Config& config, std::int64_t num_samples) {
  const double samples = std::ceil(config.train.epochs * static_cast<double>(num_samples));
  const double steps = std::ceil(samples / static_cast<double>(config.batch.global));
  const double most = config::find_key("train.steps")->allowed.range.highest;
  if (steps > most) {
    fail(ErrorKind::usage,
         "--epochs {} over {} samples in batches of {} takes {:.3g} steps, more than {:.3g}; lower "
         "it",
         config.train.epochs, num_samples, config.batch.global, steps, most);
  }
  return static_cast<std::int64_t>(steps);
}

std::optional<std::int64_t> vocab_of_data(const std::string& train) {
  std::int64_t vocab = 0;
  const auto count = [&](const TokenFile& file) {
    vocab = std::max(vocab, file.vocab());
    return true;
  };
  return visit_files(train, count) ? std::optional(vocab) : std::nullopt;
}

void check_vocab_of_data(const std::string& data, const WeightsVocab& vocab) {
  const auto found = vocab_of_data(data);
  if (!found || *found <= vocab.tokens) return;
  const auto tokenizer = tokenizer_near(vocab.weights);
  fail(ErrorKind::data,
       "{}: the weights have a vocabulary of {}, but '{}' one of {}; prepare the data with the "
       "model's tokenizer: dtrain data prepare TEXT --tokenizer {} --output FILE.dtok",
       vocab.flag, vocab.tokens, data, *found, tokenizer ? tokenizer->path : "TOKENIZER");
}

bool has_tokenizer(const std::string& train) {
  bool has_one = false;
  const auto look = [&](const TokenFile& file) {
    has_one = file.knows_tokenizer() || file.vocab() == kByteVocab;
    return !has_one;
  };
  return visit_files(train, look) && has_one;
}

DataIdentity identify(const Split& split) {
  const Samples& training = split.train.first();
  const Samples& validation = split.validation;
  const bool is_mixture = split.train.sources().size() > 1;
  const bool shares_file = &validation.file() == &training.file();
  const std::uint64_t checksum = is_mixture ? 0 : training.file().checksum();
  const bool reads_other = (!shares_file || is_mixture) && validation.size() > 0;
  return {
      .training = is_mixture ? describe(split.train) : describe(training, checksum),
      .validation = describe(validation, reads_other ? validation.file().checksum() : checksum)};
}

std::string to_text(const DataIdentity& identity) {
  return fmt::format("{}{}{}", identity.training, kSeparator, identity.validation);
}

DataIdentity identity_from(std::string_view text) {
  const std::size_t cut = text.find(kSeparator);
  if (cut == std::string_view::npos) return {.training = std::string(text), .validation = {}};
  return {.training = std::string(text.substr(0, cut)),
          .validation = std::string(text.substr(cut + kSeparator.size()))};
}

bool is_without_checksum(std::string_view training) {
  return training.find(kWithoutChecksum) != std::string_view::npos;
}

}  // namespace dtrain::data
