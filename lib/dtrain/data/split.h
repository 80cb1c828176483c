// Opens the data of a run, splits it into training and validation samples, and fingerprints it.
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

/// A range of a token file, divided into samples of T = seq_len tokens: sample i has the inputs
/// [begin + i*T, begin + i*T + T) and the targets one token later, all within the range. Copies of
/// this object share the file.
///
/// Threads: any number of readers.
class Samples {
 public:
  Samples(std::shared_ptr<const TokenFile> file, TokenRange range, std::int64_t seq_len);

  /// Number of samples: (tokens - 1) / seq_len, rounded down; 0 for an empty range.
  [[nodiscard]] std::int64_t size() const noexcept;
  [[nodiscard]] std::int64_t seq_len() const noexcept { return seq_len_; }
  [[nodiscard]] TokenRange range() const noexcept { return range_; }
  [[nodiscard]] const TokenFile& file() const noexcept { return *file_; }
  [[nodiscard]] const std::shared_ptr<const TokenFile>& shared_file() const noexcept {
    return file_;
  }

  /// Copies a sample, shifted by `shift` < seq_len tokens. The last sample is shifted only as far
  /// as the range allows.
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

/// Samples of one file, or of several files mixed in proportion to their weights.
class Mixture {
 public:
  struct Source {
    Samples samples;
    double weight = 1;
  };
  // NOLINTNEXTLINE(google-explicit-constructor): one file is a mixture too
  Mixture(Samples samples) : sources_{{std::move(samples)}} {}
  /// sources: at least one, all with the same seq_len.
  explicit Mixture(std::vector<Source> sources) : sources_(std::move(sources)) {}

  [[nodiscard]] const std::vector<Source>& sources() const noexcept { return sources_; }
  [[nodiscard]] const Samples& first() const noexcept { return sources_.front().samples; }
  /// The first file that records its tokenizer, or the first file if none does. All files share one
  /// tokenizer.
  [[nodiscard]] const TokenFile& tokenized_file() const noexcept;
  [[nodiscard]] std::int64_t seq_len() const noexcept { return first().seq_len(); }
  /// Number of samples of all sources; for one file, the samples of an epoch.
  [[nodiscard]] std::int64_t size() const noexcept;
  /// The order in which sources are interleaved.
  [[nodiscard]] SourceOrder order() const;

 private:
  std::vector<Source> sources_;
};

/// Returns the number of epochs of each source in `samples` samples of the mixture.
[[nodiscard]] std::vector<double> epochs_of(const Mixture& mixture, double samples);

struct SplitOptions {
  std::string train{};       ///< data.train: token files, or texts read as bytes
  std::string validation{};  ///< data.validation: one file; empty: val_fraction of `train`
  /// Without a validation file: fraction of `train` that is held out for validation, at its end; 0:
  /// no validation.
  double val_fraction = 0;
  std::int64_t seq_len = 0;  ///< tokens per sample
  std::int64_t vocab = kByteVocab;
};

/// Takes the data options from a configuration.
[[nodiscard]] SplitOptions split_options(const config::Config& config);

/// Returns the first file of the training and validation data that does not exist; empty if there
/// is none.
///
/// Throws: StorageError if the storage does not respond.
[[nodiscard]] std::string missing_file(const SplitOptions& options);

struct Split {
  Mixture train;
  Samples validation;  ///< size() is 0 if no validation was requested
};

/// Returns the index of the first token that val_fraction holds out for validation.
[[nodiscard]] std::int64_t validation_begin(std::int64_t num_tokens, double val_fraction);

/// Opens and checks the data of a run.
///
/// Throws: Error{data} as TokenFile::open, if training or requested validation data has less than
///         one sample, or if files have tokens of different tokenizers (or different vocabularies,
///         if one of two files does not record its tokenizer); a file of a mixture that cannot be
///         read is reported first. Error{usage} as config::parse_mixture, and for val_fraction with
///         several files.
[[nodiscard]] Split open_split(const SplitOptions& options);

/// Returns the number of steps, rounded up, of train.epochs passes over num_samples training
/// samples. config: resolved, except for its steps.
///
/// Throws: Error{usage} if the result exceeds the range of train.steps.
[[nodiscard]] std::int64_t steps_of_epochs(const config::Config& config, std::int64_t num_samples);

/// Returns the vocabulary of the training data, a model's default vocabulary; empty if a file
/// cannot be read (open_split reports the error).
///
/// Throws: StorageError if the storage does not respond.
[[nodiscard]] std::optional<std::int64_t> vocab_of_data(const std::string& train);

/// The vocabulary of a model's weights.
struct WeightsVocab {
  std::string flag;     ///< names the option that gave the model
  std::string weights;  ///< model file or checkpoint
  std::int64_t tokens = 0;
};

/// Throws: Error{data} naming both vocabularies and, if there is one, the tokenizer near the
///         weights (data::tokenizer_near), if the data has more tokens than they; otherwise as
///         vocab_of_data.
void check_vocab_of_data(const std::string& data, const WeightsVocab& vocab);

/// Returns whether a file of the training data contains its tokenizer, so that the trained model
/// can generate text. False if a file cannot be read (open_split reports the error).
///
/// Throws: as vocab_of_data.
[[nodiscard]] bool has_tokenizer(const std::string& train);

/// Fingerprints of the training and validation data. Equal strings mean equal samples, down to the
/// last token: each states the number of samples, the token range, and the XXH3 of all tokens of
/// its file.
struct DataIdentity {
  std::string training;
  std::string validation;  ///< "none" without validation
};

/// Reads every file of the split once.
[[nodiscard]] DataIdentity identify(const Split& split);

/// Returns both fingerprints as one string, as saved in checkpoints.
[[nodiscard]] std::string to_text(const DataIdentity& identity);

/// Parses the string saved in a checkpoint. A string of any other form becomes `training`, with an
/// empty `validation`.
[[nodiscard]] DataIdentity identity_from(std::string_view text);

/// Returns whether a checkpoint's `training` was written by a version without checksums: it states
/// the number of samples and a fingerprint of some of them.
[[nodiscard]] bool is_without_checksum(std::string_view training);

}  // namespace dtrain::data
