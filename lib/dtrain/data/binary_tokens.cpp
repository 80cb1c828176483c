#include "dtrain/data/binary_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "dtrain/data/source/byte_stream.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::int64_t kGpt2Vocab = 50257;
constexpr std::int64_t kGpt2End = 50256;
constexpr std::int64_t kLlama3Vocab = 128256;
constexpr std::int64_t kLlama3Begin = 128000;
constexpr std::int64_t kHeaderBytes = 1024;  // 256 numbers of llm.c

struct KnownHeader {
  std::uint32_t magic;
  std::uint32_t version;
  BinaryFormat format;
};
constexpr KnownHeader kKnown[] = {
    {20240520, 1, {"llm.c (GPT-2)", kHeaderBytes, 2, kGpt2Vocab, kGpt2End, true}},
    {20240801, 7, {"llm.c (Llama 3)", kHeaderBytes, 4, kLlama3Vocab, kLlama3Begin, true}}};
constexpr BinaryFormat kNanoGpt{"nanoGPT", 0, 2, kGpt2Vocab, kGpt2End, false};

std::uint16_t swapped(std::uint16_t x) { return static_cast<std::uint16_t>(x << 8 | x >> 8); }
std::uint32_t swapped(std::uint32_t x) { return __builtin_bswap32(x); }

[[noreturn]] void refuse_swapped(const std::string& path) {
  fail(ErrorKind::data,
       "token file '{}' is byte-swapped: it was written on a big-endian machine; write it anew as "
       "little-endian (numpy: astype('<u2').tofile)",
       path);
}

void check_header(const base::InputFile& file, const KnownHeader& known,
                  std::span<const std::uint32_t> numbers) {
  if (numbers.size() < 3 || file.size() < known.format.header_bytes) {
    fail(ErrorKind::data, "token file '{}' of {} is truncated: {} bytes, less than its header",
         file.path(), known.format.name, file.size());
  }
  if (numbers[1] != known.version) {
    fail(ErrorKind::data, "token file '{}' of {} has version {}, known is {}; make it anew",
         file.path(), known.format.name, numbers[1], known.version);
  }
  const std::int64_t there = file.size() - known.format.header_bytes;
  const std::int64_t wanted = std::int64_t{numbers[2]} * known.format.width;
  if (there == wanted) return;
  fail(ErrorKind::data,
       "token file '{}' of {} {}: its header says {} tokens, {} bytes for them are there; copy it "
       "again",
       file.path(), known.format.name, there < wanted ? "is truncated" : "is too long", numbers[2],
       there);
}

// Small numbers that are wider or byte-swapped pass for 16-bit tokens, but each second unit of
// theirs, or each low byte, is 0.
void refuse_other_numbers(const std::string& path, std::span<const std::uint16_t> units) {
  constexpr std::size_t kFewest = 64;
  if (units.size() < kFewest) return;
  bool have_low_bytes = false;
  bool have_odd_units = false;
  for (std::size_t i = 0; i < units.size(); ++i) {
    have_low_bytes = have_low_bytes || (units[i] & 0xFF) != 0;
    have_odd_units = have_odd_units || (i % 2 == 1 && units[i] != 0);
  }
  if (!have_low_bytes) refuse_swapped(path);
  if (have_odd_units) return;
  fail(ErrorKind::data,
       "token file '{}' holds 32- or 64-bit numbers, and a .bin without a header is read as 16-bit "
       "ones; write it anew (numpy: astype('<u2').tofile)",
       path);
}

// nanoGPT's files have no header. Texts are told apart by having no NUL byte.
std::optional<BinaryFormat> without_header(const std::string& path,
                                           std::span<const std::uint16_t> units, bool has_nul,
                                           std::int64_t vocab) {
  if (!path.ends_with(".bin") || units.empty() || !has_nul) return std::nullopt;
  const auto fits = [vocab](std::uint16_t unit) { return unit < vocab; };
  if (std::ranges::all_of(units, fits)) {
    refuse_other_numbers(path, units);
    return kNanoGpt;
  }
  if (std::ranges::all_of(units, [&](std::uint16_t unit) { return fits(swapped(unit)); })) {
    refuse_swapped(path);
  }
  return std::nullopt;
}

template <typename Number>
std::vector<Number> numbers_in(std::span<const char> bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  }
  return numbers;
}

/// Tokens of one file, checked and written.
template <typename Token>
class Converter {
 public:
  Converter(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
            TokenWriter& writer)
      : path_(path), format_(format), vocab_(vocab), writer_(writer) {}

  void add(std::span<const Token> tokens) {
    for (const Token token : tokens) {
      if (token >= vocab_) {
        fail(ErrorKind::data,
             "token file '{}': token {} at position {} is outside the vocabulary of {}; give "
             "--vocab N, or check that it is a file of {}",
             path_, token, position_, vocab_, format_.name);
      }
      const bool is_delimiter = token == format_.delimiter;
      if (is_delimiter && format_.delimiter_is_first && position_ > 0) end_document();
      pending_.push_back(token);
      highest_ = std::max<std::int64_t>(highest_, token);
      ++position_;
      if (is_delimiter && !format_.delimiter_is_first) end_document();
    }
    flush();
  }
  void end() {
    if (open_ > 0) end_document();
  }
  [[nodiscard]] std::int64_t highest() const { return highest_; }

 private:
  void end_document() {
    flush();
    if (open_ > 0) writer_.end_document();
    open_ = 0;
  }
  void flush() {
    open_ += std::ssize(pending_);
    if (sizeof(Token) == static_cast<std::size_t>(bytes_per_token(vocab_))) {
      writer_.add(std::as_bytes(std::span(pending_)));
    } else if (bytes_per_token(vocab_) == 1) {
      const std::vector<std::uint8_t> narrow(pending_.begin(), pending_.end());
      writer_.add(std::as_bytes(std::span(narrow)));
    } else {
      const std::vector<std::uint32_t> wide(pending_.begin(), pending_.end());
      writer_.add(std::as_bytes(std::span(wide)));
    }
    pending_.clear();
  }

  const std::string& path_;
  const BinaryFormat& format_;
  std::int64_t vocab_;
  TokenWriter& writer_;
  std::vector<Token> pending_;
  std::int64_t position_ = 0;
  std::int64_t highest_ = -1;
  std::int64_t open_ = 0;  // tokens of the document that is not ended
};

template <typename Token>
std::int64_t convert_numbers(const std::string& path, const BinaryFormat& format,
                             std::int64_t vocab, TokenWriter& writer,
                             const std::function<void(std::int64_t)>& on_bytes) {
  const base::InputFile file = base::InputFile::open(path, text_file_role());
  Converter<Token> converter(path, format, vocab, writer);
  std::vector<Token> tokens(std::size_t{1} << 18);
  for (std::int64_t offset = format.header_bytes; offset < file.size();) {
    const std::int64_t left = (file.size() - offset) / std::int64_t{sizeof(Token)};
    if (left == 0) {
      fail(ErrorKind::data, "token file '{}' is truncated: it ends within a token; copy it again",
           path);
    }
    tokens.resize(static_cast<std::size_t>(std::min<std::int64_t>(left, 1 << 18)));
    file.read(offset, std::as_writable_bytes(std::span(tokens)));
    offset += std::ssize(tokens) * std::int64_t{sizeof(Token)};
    converter.add(tokens);
    on_bytes(offset);
  }
  converter.end();
  return converter.highest();
}

}  // namespace

std::optional<BinaryFormat> binary_format_of(const std::string& path, std::int64_t vocab) {
  const base::InputFile file = base::InputFile::open(path, text_file_role());
  constexpr std::int64_t kExamined = 64 * 1024;
  std::vector<char> start(static_cast<std::size_t>(std::min(file.size(), kExamined)));
  file.read(0, std::as_writable_bytes(std::span(start)));
  const auto numbers = numbers_in<std::uint32_t>(start);
  for (const KnownHeader& known : kKnown) {
    if (numbers.empty()) break;
    if (numbers[0] == swapped(known.magic)) refuse_swapped(path);
    if (numbers[0] != known.magic) continue;
    check_header(file, known, numbers);
    return known.format;
  }
  const bool has_nul = std::ranges::find(start, '\0') != start.end();
  return without_header(path, numbers_in<std::uint16_t>(start), has_nul,
                        std::max(vocab, kGpt2Vocab));
}

std::int64_t convert_binary(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
                            TokenWriter& writer,
                            const std::function<void(std::int64_t)>& on_bytes) {
  if (format.width == 2)
    return convert_numbers<std::uint16_t>(path, format, vocab, writer, on_bytes);
  return convert_numbers<std::uint32_t>(path, format, vocab, writer, on_bytes);
}

}  // namespace dtrain::data
