#include "dtrain/data/tokens/token_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/data/text.h"

namespace dtrain::data {

namespace {

using base::ErrorKind;

template <typename Token>
Token token_at(const std::byte* tokens, std::int64_t index) {
  Token token;
  std::memcpy(&token, tokens + static_cast<std::size_t>(index) * sizeof(Token), sizeof(Token));
  return token;
}

/// Calls f with a zero of the token's type in the file.
template <typename F>
auto with_token_type(std::int64_t bytes_per_token, F f) {
  switch (bytes_per_token) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    default:
      return f(std::uint32_t{});
  }
}

[[noreturn]] void fail_outside(const std::string& path, std::int64_t token, std::int64_t position,
                               std::int64_t vocab) {
  fail(ErrorKind::data,
       "data file '{}': token {} at position {} is outside the vocabulary of {}; raise model.vocab "
       "(--vocab) or create the file again",
       path, token, position, vocab);
}

std::optional<double> tokens_per(const TokenFile& file, std::int64_t count) {
  if (count <= 0) return std::nullopt;
  return static_cast<double>(file.size()) / static_cast<double>(count);
}

// A tokenizer with a larger vocabulary could encode a prompt into tokens that the model lacks.
std::shared_ptr<const Tokenizer> stored_tokenizer_of(const TokenFile& file) {
  auto tokenizer = open_tokenizer(std::string(file.tokenizer_model()), file.path());
  if (tokenizer->vocab() > file.vocab()) {
    refuse_token_file(file.path(), fmt::format("has a vocabulary of {}, but its tokenizer has {}",
                                               file.vocab(), tokenizer->vocab()));
  }
  return tokenizer;
}

}  // namespace

TokenFile TokenFile::open(const std::string& path, std::int64_t vocab) {
  refuse_folder(path);
  return {base::InputFile::open(path, kDataFile), vocab};
}

TokenFile::TokenFile(base::InputFile file, std::int64_t vocab)
    : file_(std::move(file)), vocab_(vocab) {
  const std::string start = beginning(file_);
  if (is_token_file(start)) {
    read_header(start);
    check_tokens();
    return;
  }
  check_needs_no_preparing(start, path());
  check_is_text(start, path());
  if (vocab_ < kByteVocab) {
    fail(ErrorKind::data,
         "data file '{}' is read as bytes, which needs a vocabulary of {}, found model.vocab {}; "
         "set --vocab {} or give a token file",
         path(), kByteVocab, vocab_, kByteVocab);
  }
  num_tokens_ = file_.size();
  details_ = {.num_bytes = num_tokens_, .num_documents = 0, .tokenizer = TokenizerKind::bytes};
}

void TokenFile::read_header(std::string_view start) {
  const auto [header, header_bytes] = decode_token_header(std::as_bytes(std::span(start)), path());
  tokens_begin_ = static_cast<std::int64_t>(header_bytes);
  const std::int64_t rest = file_.size() - tokens_begin_;
  // Divides because multiplying a damaged count may overflow.
  if (const std::int64_t there = rest / header.bytes_per_token;
      header.num_tokens < 0 || there < header.num_tokens) {
    refuse_token_file(path(), fmt::format("is truncated: it has {} of {} tokens", there,
                                          static_cast<std::uint64_t>(header.num_tokens)));
  }
  const std::int64_t end = tokens_begin_ + header.num_tokens * header.bytes_per_token;
  if (header.details) {
    details_ = *header.details;
    read_tail(end, static_cast<std::int64_t>(padding_after(static_cast<std::size_t>(end))));
  } else if (end != file_.size()) {
    refuse_token_file(path(), fmt::format("has {} bytes after its {} tokens", file_.size() - end,
                                          header.num_tokens));
  }
  if (header.vocab > vocab_) {
    fail(ErrorKind::data,
         "token file '{}' has a vocabulary of {}, larger than model.vocab {}; set --vocab {} for a "
         "new model, or prepare the data with the tokenizer of the trained one",
         path(), header.vocab, vocab_, header.vocab);
  }
  stored_checksum_ = header.checksum;
  own_vocab_ = header.vocab;
  num_tokens_ = header.num_tokens;
  bytes_per_token_ = header.bytes_per_token;
}

// Reads the rest of the file from `begin`.
void TokenFile::read_tail(std::int64_t begin, std::int64_t padding) {
  const std::int64_t size = file_.size() - begin;
  const auto count = static_cast<std::uint64_t>(details_.num_documents);
  const auto model_bytes = static_cast<std::uint64_t>(details_.model_bytes);
  const auto room = static_cast<std::uint64_t>(std::max<std::int64_t>(0, size - padding));
  const bool holds_all =
      count <= room / sizeof(std::uint64_t) && model_bytes == room - count * sizeof(std::uint64_t);
  if (!holds_all || size < padding) {
    refuse_token_file(path(), "is truncated or damaged after its tokens");
  }
  base::Checksum checksum;
  file_.read_in_pieces(begin, size, [&](auto piece) { checksum.add(piece); });
  if (checksum.value() != details_.tail_checksum) {
    refuse_token_file(path(), "is damaged: its documents or its tokenizer changed");
  }
  model_.resize(model_bytes);
  file_.read(file_.size() - details_.model_bytes, std::as_writable_bytes(std::span(model_)));
}

std::string TokenFile::tokenizer() const { return identity_of(details_.tokenizer, model_); }

void TokenFile::check_tokens() const {
  if (vocab_ >= std::int64_t{1} << (8 * bytes_per_token_)) return;
  std::int64_t position = 0;
  const std::int64_t size = num_tokens_ * bytes_per_token_;
  file_.read_in_pieces(tokens_begin_, size, [&](std::span<const std::byte> piece) {
    const std::int64_t count = std::ssize(piece) / bytes_per_token_;
    with_token_type(bytes_per_token_, [&]<typename Token>(Token largest) {
      for (std::int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, token_at<Token>(piece.data(), i));
      }
      if (std::int64_t{largest} < vocab_) return;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t token = token_at<Token>(piece.data(), i);
        if (token >= vocab_) fail_outside(path(), token, position + i, vocab_);
      }
    });
    position += count;
  });
}

std::uint64_t TokenFile::checksum() const {
  base::Checksum checksum;
  file_.read_in_pieces(tokens_begin_, num_tokens_ * bytes_per_token_,
                       [&](auto piece) { checksum.add(piece); });
  const std::uint64_t found = checksum.value();
  if (stored_checksum_ && *stored_checksum_ != found) {
    fail(ErrorKind::data,
         "token file '{}' is damaged: its tokens have the checksum {}, but its header gives {}; "
         "create it again with `dtrain data prepare`",
         path(), base::checksum_text(found), base::checksum_text(*stored_checksum_));
  }
  return found;
}

std::int64_t TokenFile::operator[](std::int64_t index) const {
  std::int64_t token = 0;
  copy(index, {&token, 1});
  return token;
}

void TokenFile::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  DTRAIN_CHECK(begin >= 0 && count <= num_tokens_ && begin <= num_tokens_ - count,
               "tokens [{}, {} + {}) of {}", begin, begin, count, num_tokens_);
  // Reads into the end of `out`, then widens from its beginning without overwriting unread tokens.
  const std::span read =
      std::as_writable_bytes(out).last(static_cast<std::size_t>(count * bytes_per_token_));
  file_.read(tokens_begin_ + begin * bytes_per_token_, read);
  const std::int64_t largest =
      with_token_type(bytes_per_token_, [&]<typename Token>(Token) -> std::int64_t {
        std::int64_t seen = 0;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t token = token_at<Token>(read.data(), i);
          out[static_cast<std::size_t>(i)] = token;
          seen = std::max(seen, token);
        }
        return seen;
      });
  // Checks again because the file may have changed since it was opened, and an index beyond the
  // embedding would read out of bounds.
  if (largest >= vocab_) {
    const auto found = std::find(out.begin(), out.end(), largest);
    fail_outside(path(), largest, begin + (found - out.begin()), vocab_);
  }
}

std::optional<double> TextUnits::bits_per_byte(double loss) const {
  if (!tokens_per_byte) return std::nullopt;
  return loss / std::numbers::ln2 * *tokens_per_byte;
}

std::optional<double> TextUnits::perplexity_per_word(double loss) const {
  if (!tokens_per_word) return std::nullopt;
  return std::exp(loss * *tokens_per_word);
}

TextUnits units_of(const TokenFile& file) {
  return {.tokens_per_byte = tokens_per(file, file.details().num_bytes),
          .tokens_per_word = tokens_per(file, file.details().num_words)};
}

std::shared_ptr<const Tokenizer> tokenizer_of(const TokenFile& file) {
  switch (file.details().tokenizer) {
    case TokenizerKind::bytes:
      return byte_tokenizer();
    case TokenizerKind::sentencepiece:
    case TokenizerKind::hugging_face:
      return stored_tokenizer_of(file);
    case TokenizerKind::unknown:
      break;
  }
  // Files of versions 1 and 2 do not record that they hold bytes.
  return file.vocab() == kByteVocab ? byte_tokenizer() : nullptr;
}

}  // namespace dtrain::data
