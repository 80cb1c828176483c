#include "dtrain/data/tokens/token_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/data/text.h"

namespace dtrain::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr std::uint32_t kLatestVersion = 3;

/// The header of version 1 as stored, little-endian.
struct RawHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t bytes_per_token;
  std::uint64_t vocab;
  std::uint64_t num_tokens;
  std::uint64_t checksum;
};
static_assert(sizeof(RawHeader) == kTokenHeaderBytes);

/// Fields that version 3 appends.
struct RawDetails {
  std::uint64_t checksum_of_tokens;
  TokenDetails details;
  std::uint64_t checksum;
};
static_assert(std::is_trivially_copyable_v<RawDetails>);
static_assert(kTokenHeaderBytes + sizeof(RawDetails) == kTokenHeaderBytes3);

/// FNV-1a of all but the last eight bytes, which hold the checksum.
template <typename Raw>
std::uint64_t own_checksum(const Raw& raw) {
  return base::hash_bytes(
      std::as_bytes(std::span(&raw, 1)).first(sizeof(raw) - sizeof(raw.checksum)));
}

template <typename Raw>
void append(std::vector<std::byte>& bytes, const Raw& raw) {
  bytes.resize(bytes.size() + sizeof(raw));
  std::memcpy(bytes.data() + bytes.size() - sizeof(raw), &raw, sizeof(raw));
}

template <typename Raw>
Raw read(std::span<const std::byte> file, std::size_t offset, const std::string& path) {
  if (file.size() < offset + sizeof(Raw)) {
    refuse_token_file(
        path, fmt::format("is truncated: its {} bytes are too few for its header", file.size()));
  }
  Raw raw;
  std::memcpy(&raw, file.data() + offset, sizeof(raw));
  return raw;
}

TokenDetails details_of(const RawDetails& raw, const std::string& path) {
  if (raw.checksum != own_checksum(raw)) {
    refuse_token_file(path, "has a damaged header: its second checksum does not match");
  }
  constexpr TokenizerKind kLargest = TokenizerKind::hugging_face;
  if (raw.details.tokenizer > kLargest) {
    refuse_token_file(path, fmt::format("has tokenizer kind {}, but only 0 to {} are supported",
                                        static_cast<std::uint64_t>(raw.details.tokenizer),
                                        static_cast<std::uint64_t>(kLargest)));
  }
  return raw.details;
}

}  // namespace

void refuse_token_file(const std::string& path, std::string_view found) {
  base::fail(base::ErrorKind::data,
             "token file '{}' {}; create it again with `dtrain data prepare`", path, found);
}

std::size_t padding_after(std::size_t bytes_of_header_and_tokens) {
  constexpr std::size_t kAlignment = 8;
  return (kAlignment - bytes_of_header_and_tokens % kAlignment) % kAlignment;
}

std::vector<std::byte> encode_token_header(const TokenHeader& header) {
  DTRAIN_CHECK(!header.details || header.checksum);
  RawHeader raw{};
  std::copy(kTokenMagic.begin(), kTokenMagic.end(), raw.magic.begin());
  raw.version = header.details ? 3 : header.checksum ? 2 : 1;
  raw.bytes_per_token = base::narrow<std::uint32_t>(header.bytes_per_token);
  raw.vocab = base::narrow<std::uint64_t>(header.vocab);
  raw.num_tokens = base::narrow<std::uint64_t>(header.num_tokens);
  raw.checksum = own_checksum(raw);
  std::vector<std::byte> bytes;
  append(bytes, raw);
  if (!header.details) {
    if (header.checksum) append(bytes, *header.checksum);
    return bytes;
  }
  RawDetails details{
      .checksum_of_tokens = *header.checksum, .details = *header.details, .checksum = 0};
  details.checksum = own_checksum(details);
  append(bytes, details);
  return bytes;
}

std::pair<TokenHeader, std::size_t> decode_token_header(std::span<const std::byte> file,
                                                        const std::string& path) {
  const auto raw = read<RawHeader>(file, 0, path);
  if (raw.version < 1 || raw.version > kLatestVersion) {
    refuse_token_file(path, fmt::format("has format version {}, but only 1 to {} are supported",
                                        raw.version, kLatestVersion));
  }
  if (raw.checksum != own_checksum(raw)) {
    refuse_token_file(path, "has a damaged header: its checksum does not match");
  }
  const std::uint64_t width = raw.bytes_per_token;
  if (width != 1 && width != 2 && width != 4) {
    refuse_token_file(
        path, fmt::format("has {} bytes per token, but only 1, 2 and 4 are supported", width));
  }
  if (raw.num_tokens == 0) refuse_token_file(path, "holds no tokens");
  constexpr std::uint64_t kMostVocab = std::uint64_t{1} << 32;
  if (raw.vocab > kMostVocab) {
    refuse_token_file(path, fmt::format("has an invalid vocabulary of {}", raw.vocab));
  }
  TokenHeader header{.bytes_per_token = static_cast<std::int64_t>(width),
                     .vocab = static_cast<std::int64_t>(raw.vocab),
                     .num_tokens = static_cast<std::int64_t>(raw.num_tokens)};
  if (raw.version == 1) return {header, kTokenHeaderBytes};
  header.checksum = read<std::uint64_t>(file, kTokenHeaderBytes, path);
  if (raw.version == 2) return {header, kTokenHeaderBytes2};
  header.details = details_of(read<RawDetails>(file, kTokenHeaderBytes, path), path);
  return {header, kTokenHeaderBytes3};
}

}  // namespace dtrain::data
