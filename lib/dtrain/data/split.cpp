#include "dtrain/data/split.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "dtrain/base/check.h"

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
                   std::span<std::int64_t> targets) const {
  const auto length = static_cast<std::size_t>(seq_len_);
  DTRAIN_CHECK(0 <= sample && sample < size(), "sample {} of {}", sample, size());
  DTRAIN_CHECK(inputs.size() == length && targets.size() == length);
  const std::int64_t begin = range_.begin + sample * seq_len_;
  file_->copy(begin, inputs);
  file_->copy(begin + 1, targets);
}

namespace {

/// `part` is "for training" or "for validation".
void check_has_sample(const Samples& samples, std::string_view part) {
  if (samples.size() > 0) return;
  const TokenRange range = samples.range();
  fail(ErrorKind::data,
       "data file '{}' has {} tokens {}, less than one sequence of data.seq_len + 1 = {} tokens; "
       "lower --seq-len or give more data",
       samples.file().path(), range.end - range.begin, part, samples.seq_len() + 1);
}

// Training data is spoken of in the same words, so the message begins with the setting.
std::shared_ptr<const TokenFile> open_validation(const SplitOptions& options) {
  try {
    return std::make_shared<const TokenFile>(TokenFile::open(options.validation, options.vocab));
  } catch (const base::Error& error) {
    fail(error.kind(), "--val-data: {}", error.what());
  }
}

}  // namespace

SplitOptions split_options(const config::Config& config) {
  return {.train = config.data.train,
          .validation = config.data.validation,
          .val_fraction = config.data.val_fraction,
          .seq_len = config.data.seq_len,
          .vocab = config.model.vocab};
}

Split open_split(const SplitOptions& options) {
  const bool has_file = !options.validation.empty();
  DTRAIN_CHECK(options.val_fraction >= 0 && options.val_fraction < 1);
  DTRAIN_CHECK(!has_file || options.val_fraction == 0);
  const auto file =
      std::make_shared<const TokenFile>(TokenFile::open(options.train, options.vocab));
  const std::int64_t size = file->size();
  const std::int64_t cut =
      size - static_cast<std::int64_t>(static_cast<double>(size) * options.val_fraction);
  Samples train(file, {0, cut}, options.seq_len);
  check_has_sample(train, "for training");
  Samples validation(file, {cut, size}, options.seq_len);
  if (has_file) {
    const auto other = open_validation(options);
    validation = Samples(other, {0, other->size()}, options.seq_len);
  }
  if (has_file || options.val_fraction > 0) check_has_sample(validation, "for validation");
  return {std::move(train), std::move(validation)};
}

}  // namespace dtrain::data
