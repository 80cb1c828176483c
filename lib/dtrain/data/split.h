// The data of a run: opens it, splits it into training and validation, identifies it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/data/sampler.h"
#include "dtrain/data/tokens/token_file.h"

namespace dtrain::data {

/// Tokens [begin, end) of a file.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A range of a token file as samples of seq_len tokens: sample i has the inputs
/// [begin + i*T, begin + i*T + T) and the targets one token later, all within the range. A value:
/// copies share the file.
///
/// Threads: any number of readers.
class Samples {
 public:
  Samples(std::shared_ptr<const TokenFile> file, TokenRange range, std::int64_t seq_len);

  /// (tokens - 1) / seq_len, rounded down; 0 for an empty range.
  [[nodiscard]] std::int64_t size() const noexcept;
  [[nodiscard]] std::int64_t seq_len() const noexcept { return seq_len_; }
  [[nodiscard]] TokenRange range() const noexcept { return range_; }
  [[nodiscard]] const TokenFile& file() const noexcept { return *file_; }
  [[nodiscard]] const std::shared_ptr<const TokenFile>& shared_file() const noexcept {
    return file_;
  }

  /// Copies a sample. shift < seq_len: the sample begins this many tokens later, the last one at
  /// most as many as the range has tokens left.
  ///
  /// Shapes: inputs and targets (seq_len).
  /// Throws: Error{data} as TokenFile::copy.
  void copy(std::int64_t sample, std::span<std::int64_t> inputs, std::span<std::int64_t> targets,
            std::int64_t shift = 0) const;

 private:
  std::shared_ptr<const TokenFile> file_;
  TokenRange range_;
  std::int64_t seq_len_;
};

/// Samples of one file, or of several that are mixed in proportion to weights.
class Mixture {
 public:
  struct Source {
    Samples samples;
    double weight = 1;
  };
  // NOLINTNEXTLINE(google-explicit-constructor): one file is a mixture, too
  Mixture(Samples samples) : sources_{{std::move(samples)}} {}
  /// At least one, all with the same seq_len.
  explicit Mixture(std::vector<Source> sources) : sources_(std::move(sources)) {}

  [[nodiscard]] const std::vector<Source>& sources() const noexcept { return sources_; }
  [[nodiscard]] const Samples& first() const noexcept { return sources_.front().samples; }
  /// The first file that knows its tokenizer, which is that of all; else the first.
  [[nodiscard]] const TokenFile& tokenized_file() const noexcept;
  [[nodiscard]] std::int64_t seq_len() const noexcept { return first().seq_len(); }
  /// Samples of all sources; of one file, those of an epoch.
  [[nodiscard]] std::int64_t size() const noexcept;
  /// The order in which the sources take turns.
  [[nodiscard]] SourceOrder order() const;

 private:
  std::vector<Source> sources_;
};

/// The epochs of each source that `samples` samples of the mixture are.
[[nodiscard]] std::vector<double> epochs_of(const Mixture& mixture, double samples);

struct SplitOptions {
  std::string train{};       ///< data.train: token files, or texts read as bytes
  std::string validation{};  ///< data.validation: the same; empty: val_fraction of `train`
  double val_fraction =
      0;  ///< without a validation file: share of `train`, its end, kept for validation; 0: none
  std::int64_t seq_len = 0;  ///< tokens per sample
  std::int64_t vocab = kByteVocab;
};

/// Takes the data's options from a configuration.
[[nodiscard]] SplitOptions split_options(const config::Config& config);

struct Split {
  Mixture train;
  Samples validation;  ///< size() 0 where no validation was asked for
};

/// The first of a file's tokens that val_fraction keeps for validation.
[[nodiscard]] std::int64_t validation_begin(std::int64_t num_tokens, double val_fraction);

/// Opens and checks the data of a run.
///
/// Throws: Error{data} as TokenFile::open, if training or a validation that was asked for has not
///         one sample, and if files have tokens of different tokenizers (or, where one of two does
///         not know its tokenizer, of different vocabularies); Error{usage} as
///         config::parse_mixture, and for a val_fraction of several files.
[[nodiscard]] Split open_split(const SplitOptions& options);

/// The steps of train.epochs passes over so many samples of training data, rounded up.
/// config: resolved, except for its steps.
///
/// Throws: Error{usage} if they are more than train.steps may be.
[[nodiscard]] std::int64_t steps_of_epochs(const config::Config& config, std::int64_t num_samples);

/// The vocabulary of the training data, which a model has unless it is told otherwise; nothing
/// where a file cannot be read, which open_split reports.
///
/// Throws: StorageError if the storage does not answer: nothing is known of the file then.
[[nodiscard]] std::optional<std::int64_t> vocab_of_data(const std::string& train);

/// Whether a model of the training data can write text: a file brings its tokenizer. False where a
/// file cannot be read, which open_split reports.
///
/// Throws: as vocab_of_data.
[[nodiscard]] bool has_tokenizer(const std::string& train);

/// Equal texts mean equal samples, down to the last token: each holds the number of samples, the
/// range of tokens, and the checksum (XXH3) of all tokens of its file.
struct DataIdentity {
  std::string training;
  std::string validation;  ///< "none" without validation
};

/// Reads every file of the split once, at the speed of the disk.
[[nodiscard]] DataIdentity identify(const Split& split);

/// Both in one text, as checkpoints keep them.
[[nodiscard]] std::string to_text(const DataIdentity& identity);

/// Parses the text in a checkpoint. In a text of another form all is `training`, and `validation`
/// is empty.
[[nodiscard]] DataIdentity identity_from(std::string_view text);

/// Returns whether a checkpoint's `training` has the form used before checksums: its number of
/// samples and a fingerprint of some of them.
[[nodiscard]] bool is_without_checksum(std::string_view training);

}  // namespace dtrain::data
