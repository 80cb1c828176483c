#include "dtrain/data/binary_tokens.h"

#include <algorithm>
#include <vector>

#include "dtrain/data/source/byte_stream.h"
#include "dtrain/data/text.h"

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
  if (std::ranges::all_of(units, [](std::uint16_t unit) { return (unit & 0xFF) == 0; })) {
    refuse_swapped(path);
  }
  for (std::size_t i = 1; i < units.size(); i += 2) {
    if (units[i] != 0) return;
  }
  fail(ErrorKind::data,
       "token file '{}' holds 32- or 64-bit numbers, and a .bin without a header is read as 16-bit "
       "ones; write it anew (numpy: astype('<u2').tofile)",
       path);
}

// nanoGPT's files have no header. Texts are told apart by having no NUL byte.
std::optional<BinaryFormat> without_header(const std::string& path,
                                           std::span<const std::byte> start, std::int64_t vocab) {
  const auto units = numbers_in<std::uint16_t>(start);
  const bool has_nul = std::ranges::find(start, std::byte{0}) != start.end();
  const auto fits = [vocab](std::uint16_t unit) { return unit < vocab; };
  if (!path.ends_with(".bin") || units.empty() || !has_nul) return std::nullopt;
  if (std::ranges::all_of(units, fits)) {
    refuse_other_numbers(path, units);
    return kNanoGpt;
  }
  if (std::ranges::all_of(units, fits, [](auto unit) { return __builtin_bswap16(unit); })) {
    refuse_swapped(path);
  }
  return std::nullopt;
}

/// Checks and writes the tokens of one file.
class Converter {
 public:
  Converter(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
            TokenWriter& writer)
      : path_(path), format_(format), vocab_(vocab), writer_(writer) {}

  void add(std::span<const std::uint32_t> tokens) {
    check(tokens);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] != format_.delimiter) continue;
      const std::size_t end = format_.delimiter_is_first ? i : i + 1;
      write(tokens.subspan(begin, end - begin));
      end_document();
      begin = end;
    }
    write(tokens.subspan(begin));
    position_ += std::ssize(tokens);
  }
  void end_document() {
    if (open_ > 0) writer_.end_document();
    open_ = 0;
  }
  [[nodiscard]] std::int64_t highest() const { return highest_; }

 private:
  void check(std::span<const std::uint32_t> tokens) {
    highest_ = std::max<std::int64_t>(highest_, std::ranges::max(tokens));
    if (highest_ < vocab_) return;
    const auto outside = std::ranges::find_if(tokens, [&](auto token) { return token >= vocab_; });
    fail(ErrorKind::data,
         "token file '{}': token {} at position {} is outside the vocabulary of {}; give "
         "--vocab N, or check that it is a file of {}",
         path_, *outside, position_ + (outside - tokens.begin()), vocab_, format_.name);
  }
  void write(std::span<const std::uint32_t> tokens) {
    std::vector<std::byte> bytes;
    append_tokens(tokens, bytes_per_token(vocab_), bytes);
    writer_.add(bytes);
    open_ += std::ssize(tokens);
  }

  const std::string& path_;
  const BinaryFormat& format_;
  std::int64_t vocab_;
  TokenWriter& writer_;
  std::int64_t position_ = 0;
  std::int64_t highest_ = -1;
  std::int64_t open_ = 0;  // tokens of the document that is not ended
};

std::vector<std::uint32_t> tokens_in(std::span<const std::byte> bytes, std::int64_t width) {
  if (width == 4) return numbers_in<std::uint32_t>(bytes);
  const auto narrow = numbers_in<std::uint16_t>(bytes);
  return {narrow.begin(), narrow.end()};
}

}  // namespace

std::optional<BinaryFormat> binary_format_of(const std::string& path, std::int64_t vocab) {
  if (path == kStandardInput) return std::nullopt;  // which is read once, as a text
  const base::InputFile file = base::InputFile::open(path, kTextFile);
  const std::string start = beginning(file);
  const auto bytes = std::as_bytes(std::span(start));
  const auto numbers = numbers_in<std::uint32_t>(bytes);
  for (const KnownHeader& known : kKnown) {
    if (numbers.empty()) break;
    if (numbers[0] == __builtin_bswap32(known.magic)) refuse_swapped(path);
    if (numbers[0] != known.magic) continue;
    check_header(file, known, numbers);
    return known.format;
  }
  return without_header(path, bytes, std::max(vocab, kGpt2Vocab));
}

std::int64_t convert_binary(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
                            TokenWriter& writer,
                            const std::function<void(std::int64_t)>& on_bytes) {
  constexpr std::int64_t kTokensAtOnce = 1 << 18;
  const base::InputFile file = base::InputFile::open(path, kTextFile);
  Converter converter(path, format, vocab, writer);
  std::vector<std::byte> bytes;
  for (std::int64_t offset = format.header_bytes; offset < file.size();) {
    const std::int64_t left = (file.size() - offset) / format.width;
    if (left == 0) {
      fail(ErrorKind::data, "token file '{}' is truncated: it ends within a token; copy it again",
           path);
    }
    bytes.resize(static_cast<std::size_t>(std::min(left, kTokensAtOnce) * format.width));
    file.read(offset, bytes);
    offset += std::ssize(bytes);
    converter.add(tokens_in(bytes, format.width));
    on_bytes(offset);
  }
  converter.end_document();
  return converter.highest();
}

}  // namespace dtrain::data
