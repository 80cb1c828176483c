#include "dtrain/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/base/checksum.h"
#include "dtrain/base/hash.h"
#include "dtrain/data/text.h"

namespace dtrain::data {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

using base::ErrorKind;

constexpr std::uint32_t kLatestVersion = 2;
constexpr std::size_t kChecksumOffset = kTokenHeaderBytes - sizeof(std::uint64_t);

/// The header as bytes lie in the file, little-endian.
struct RawHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t bytes_per_token;
  std::uint64_t vocab;
  std::uint64_t num_tokens;
  std::uint64_t checksum;
};
static_assert(sizeof(RawHeader) == kTokenHeaderBytes &&
              offsetof(RawHeader, checksum) == kChecksumOffset);

template <typename Token>
Token token_at(const std::byte* tokens, std::int64_t index) {
  Token token;
  std::memcpy(&token, tokens + static_cast<std::size_t>(index) * sizeof(Token), sizeof(Token));
  return token;
}

/// Calls f with a zero of the type that a token has in the file.
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
       "data file '{}': token {} at position {} is outside the vocabulary of {}; raise "
       "model.vocab (--vocab) or make the file anew",
       path, token, position, vocab);
}

}  // namespace

std::vector<std::byte> encode_token_header(const TokenHeader& header) {
  RawHeader raw{};
  std::copy(kTokenMagic.begin(), kTokenMagic.end(), raw.magic.begin());
  raw.version = header.checksum ? kLatestVersion : 1;
  raw.bytes_per_token = base::narrow<std::uint32_t>(header.bytes_per_token);
  raw.vocab = base::narrow<std::uint64_t>(header.vocab);
  raw.num_tokens = base::narrow<std::uint64_t>(header.num_tokens);
  raw.checksum = base::hash_bytes(std::as_bytes(std::span(&raw, 1)).first(kChecksumOffset));
  std::vector<std::byte> bytes(sizeof(raw) + (header.checksum ? sizeof(*header.checksum) : 0));
  std::memcpy(bytes.data(), &raw, sizeof(raw));
  if (header.checksum) {
    std::memcpy(bytes.data() + sizeof(raw), &*header.checksum, sizeof(*header.checksum));
  }
  return bytes;
}

TokenFile TokenFile::open(const std::string& path, std::int64_t vocab) {
  refuse_folder(path);
  return {base::MappedFile::open(path, data_file_role()), vocab};
}

TokenFile::TokenFile(base::MappedFile file, std::int64_t vocab)
    : file_(std::move(file)), vocab_(vocab) {
  if (is_token_file(file_)) {
    read_header();
    check_tokens();
    return;
  }
  check_is_text(file_);
  if (vocab_ < kByteVocab) {
    fail(ErrorKind::data,
         "data file '{}' is read as bytes, which needs a vocabulary of {}, found model.vocab {}; "
         "set --vocab {} or give a token file",
         path(), kByteVocab, vocab_, kByteVocab);
  }
  tokens_ = file_.bytes();
  num_tokens_ = static_cast<std::int64_t>(tokens_.size());
}

void TokenFile::read_header() {
  const auto bytes = file_.bytes();
  const auto refuse = [&](std::string_view found) {
    fail(ErrorKind::data, "token file '{}' {}; make it anew with `dtrain data prepare`", path(),
         found);
  };
  if (bytes.size() < kTokenHeaderBytes) {
    refuse(fmt::format("is truncated: {} bytes, less than its header", bytes.size()));
  }
  RawHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version < 1 || header.version > kLatestVersion) {
    refuse(
        fmt::format("has format version {}, known are 1 and {}", header.version, kLatestVersion));
  }
  if (header.checksum != base::hash_bytes(bytes.first(kChecksumOffset))) {
    refuse("has a damaged header: its checksum does not agree");
  }
  const std::uint64_t width = header.bytes_per_token;
  if (width != 1 && width != 2 && width != 4) {
    refuse(fmt::format("claims {} bytes per token, known are 1, 2 and 4", width));
  }
  if (header.num_tokens == 0) refuse("holds no tokens");
  tokens_ = bytes.subspan(kTokenHeaderBytes);
  if (header.version > 1) read_checksum();
  // Division, since the product of a damaged count may wrap.
  if (tokens_.size() / width < header.num_tokens) {
    refuse(fmt::format("is truncated: {} of {} tokens are there", tokens_.size() / width,
                       header.num_tokens));
  }
  if (tokens_.size() != header.num_tokens * width) {
    refuse(fmt::format("has {} bytes after its {} tokens",
                       tokens_.size() - header.num_tokens * width, header.num_tokens));
  }
  if (header.vocab > static_cast<std::uint64_t>(vocab_)) {
    fail(ErrorKind::data,
         "token file '{}' has a vocabulary of {}, larger than model.vocab {}; set --vocab {}",
         path(), header.vocab, vocab_, header.vocab);
  }
  num_tokens_ = static_cast<std::int64_t>(header.num_tokens);
  bytes_per_token_ = static_cast<std::int64_t>(width);
}

// Reads version 2's checksum, which stands between the header and the tokens.
void TokenFile::read_checksum() {
  std::uint64_t stored = 0;
  if (tokens_.size() < sizeof(stored)) {
    fail(ErrorKind::data, "token file '{}' is truncated; make it anew with `dtrain data prepare`",
         path());
  }
  std::memcpy(&stored, tokens_.data(), sizeof(stored));
  stored_checksum_ = stored;
  tokens_ = tokens_.subspan(sizeof(stored));
}

void TokenFile::check_tokens() const {
  if (vocab_ >= std::int64_t{1} << (8 * bytes_per_token_)) return;
  with_token_type(bytes_per_token_, [&]<typename Token>(Token largest) {
    const std::byte* tokens = tokens_.data();
    for (std::int64_t i = 0; i < num_tokens_; ++i) {
      largest = std::max(largest, token_at<Token>(tokens, i));
    }
    if (std::int64_t{largest} < vocab_) return;
    for (std::int64_t i = 0; i < num_tokens_; ++i) {
      const std::int64_t token = token_at<Token>(tokens, i);
      if (token >= vocab_) fail_outside(path(), token, i, vocab_);
    }
  });
}

std::uint64_t TokenFile::checksum() const {
  const std::uint64_t found = base::checksum_of(tokens_);
  if (stored_checksum_ && *stored_checksum_ != found) {
    fail(ErrorKind::data,
         "token file '{}' is damaged: its tokens have the checksum {}, its header says {}; make it "
         "anew with `dtrain data prepare`",
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
  const std::int64_t largest =
      with_token_type(bytes_per_token_, [&]<typename Token>(Token) -> std::int64_t {
        std::int64_t seen = 0;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t token = token_at<Token>(tokens_.data(), begin + i);
          out[static_cast<std::size_t>(i)] = token;
          seen = std::max(seen, token);
        }
        return seen;
      });
  // Checked again because the file may have changed since it was opened, and an index beyond the
  // embedding would be read from foreign memory.
  if (largest >= vocab_) {
    const auto found = std::find(out.begin(), out.end(), largest);
    fail_outside(path(), largest, begin + (found - out.begin()), vocab_);
  }
}

}  // namespace dtrain::data
