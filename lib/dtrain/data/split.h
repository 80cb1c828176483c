// Splits a token file's samples into training and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dtrain/config/config.h"
#include "dtrain/data/token_file.h"

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

  /// Shapes: inputs and targets (seq_len).
  /// Throws: Error{data} as TokenFile::copy.
  void copy(std::int64_t sample, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

 private:
  std::shared_ptr<const TokenFile> file_;
  TokenRange range_;
  std::int64_t seq_len_;
};

struct SplitOptions {
  std::string train{};       ///< data.train: a token file, or a text read as bytes
  std::string validation{};  ///< data.validation: the same; empty: val_fraction of `train`
  double val_fraction =
      0;  ///< without a validation file: share of `train`, its end, kept for validation; 0: none
  std::int64_t seq_len = 0;  ///< tokens per sample
  std::int64_t vocab = kByteVocab;
};

/// Takes the data's options from a configuration.
[[nodiscard]] SplitOptions split_options(const config::Config& config);

struct Split {
  Samples train;
  Samples validation;  ///< size() 0 where no validation was asked for
};

/// Opens and checks the data of a run.
///
/// Throws: Error{data} as TokenFile::open, and if training or a validation that was asked for has
///         not one sample.
[[nodiscard]] Split open_split(const SplitOptions& options);

}  // namespace dtrain::data
