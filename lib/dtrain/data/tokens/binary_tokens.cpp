#include "dtrain/data/tokens/binary_tokens.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/data/source/byte_stream.h"
#include "dtrain/data/text.h"
#include "dtrain/data/tokens/headerless.h"
#include "dtrain/data/tokens/megatron.h"
#include "dtrain/data/tokens/numpy_file.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::int64_t kGpt2Vocab = 50257;
constexpr std::int64_t kGpt2End = 50256;
constexpr std::int64_t kLlama3Vocab = 128256;
constexpr std::int64_t kLlama3Begin = 128000;
constexpr std::int64_t kHeaderBytes = 1024;  // of llm.c: 256 numbers

struct KnownHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::string_view name;
  std::int64_t width;  // bytes of a token
  std::int64_t vocab;
  std::int64_t delimiter;
};
constexpr KnownHeader kKnown[] = {{20240520, 1, "llm.c (GPT-2)", 2, kGpt2Vocab, kGpt2End},
                                  {20240801, 7, "llm.c (Llama 3)", 4, kLlama3Vocab, kLlama3Begin}};

[[noreturn]] void refuse_swapped(const std::string& path) {
  fail(ErrorKind::data,
       "token file '{}' is byte-swapped: it was written on a big-endian machine; rewrite it as "
       "little-endian (numpy: astype('<u2').tofile)",
       path);
}

void check_header(const base::InputFile& file, const KnownHeader& known,
                  std::span<const std::uint32_t> numbers) {
  if (numbers.size() < 3 || file.size() < kHeaderBytes) {
    fail(ErrorKind::data,
         "token file '{}' of {} is truncated: its {} bytes are too few for its header; create it "
         "again",
         file.path(), known.name, file.size());
  }
  if (numbers[1] != known.version) {
    fail(ErrorKind::data,
         "token file '{}' of {} has version {}, but only version {} is supported; create it again",
         file.path(), known.name, numbers[1], known.version);
  }
  const std::int64_t there = file.size() - kHeaderBytes;
  const std::int64_t wanted = std::int64_t{numbers[2]} * known.width;
  if (there == wanted) return;
  fail(ErrorKind::data,
       "token file '{}' of {} {}: its header gives {} tokens, but {} bytes of tokens follow; copy "
       "it again",
       file.path(), known.name, there < wanted ? "is truncated" : "is too long", numbers[2], there);
}

std::optional<BinaryFormat> llm_c_format(const base::InputFile& file, std::string_view start) {
  const auto numbers = numbers_in<std::uint32_t>(std::as_bytes(std::span(start)));
  for (const KnownHeader& known : kKnown) {
    if (numbers.empty()) break;
    if (numbers[0] == __builtin_bswap32(known.magic)) refuse_swapped(file.path());
    if (numbers[0] != known.magic) continue;
    check_header(file, known, numbers);
    return BinaryFormat{.name = std::string(known.name),
                        .header_bytes = kHeaderBytes,
                        .type = {.bytes = known.width},
                        .vocab = known.vocab,
                        .delimiter = known.delimiter,
                        .delimiter_is_first = true};
  }
  return std::nullopt;
}

// The delimiter of tokens whose vocabulary the user gave: GPT-2's, if the vocabulary is GPT-2's.
std::optional<std::int64_t> delimiter_of(std::int64_t vocab) {
  const bool is_gpt2 = kGpt2Vocab <= vocab && vocab <= kGpt2LargestVocab;
  return is_gpt2 ? std::optional(kGpt2End) : std::nullopt;
}

/// The format of a file with a header or index.
std::optional<BinaryFormat> certain_format(const base::InputFile& file, std::string_view start,
                                           std::int64_t vocab) {
  if (auto llm_c = llm_c_format(file, start)) return llm_c;
  if (start.starts_with(kNumpyMagic)) {
    const NumpyArray array = read_numpy_header(file, start);
    return BinaryFormat{.name = fmt::format("NumPy ({})", name_of(array.type)),
                        .header_bytes = array.header_bytes,
                        .type = array.type,
                        .delimiter = delimiter_of(vocab),
                        .delimiter_is_first = true};
  }
  const auto index = MegatronIndex::open(file);
  if (index == nullptr) return std::nullopt;
  return BinaryFormat{.name = fmt::format("Megatron ({})", name_of(index->type())),
                      .type = index->type(),
                      .has_index = true};
}

// if_other: advice if the file holds something else.
void check_whole_numbers(const base::InputFile& file, NumberType type, std::string_view if_other) {
  if (file.size() % type.bytes == 0) return;
  fail(ErrorKind::data,
       "token file '{}' is truncated, or its tokens are not {}: its size, {} bytes, is not a "
       "multiple of theirs; copy it again, or {}",
       file.path(), name_of(type), file.size(), if_other);
}

constexpr std::string_view kNameType = "give the type of its tokens: --token-type TYPE";

/// The format of a headerless file of the type that the user gave.
BinaryFormat named_format(const base::InputFile& file, std::string_view start,
                          const BinaryHints& hints) {
  const std::string_view what = is_plain_text(start) ? "a text" : format_by_signature(start);
  if (!what.empty()) {
    fail(ErrorKind::usage, "--token-type is for token files without a header, but '{}' is {}; {}",
         file.path(), what,
         what.ends_with("compressed") ? "decompress it first" : "prepare it separately");
  }
  check_whole_numbers(file, *hints.type, kNameType);
  return {.name = fmt::format("{} numbers without a header", name_of(*hints.type)),
          .type = *hints.type,
          .delimiter = delimiter_of(hints.vocab)};
}

/// The format of a headerless .bin file that is neither text nor of a known signature: nanoGPT's,
/// or an error if that is in doubt.
BinaryFormat nanogpt_format(const base::InputFile& file, std::string_view start,
                            std::int64_t vocab) {
  check_whole_numbers(file, {.bytes = 2}, fmt::format("{}; {}", kNameType, kIfTextOfBin));
  switch (examine_headerless(std::as_bytes(std::span(start)))) {
    case Headerless::uint16:
      break;
    case Headerless::swapped:
      refuse_swapped(file.path());
    case Headerless::wider:
      fail(ErrorKind::data,
           "token file '{}' seems to hold 32- or 64-bit tokens, but a .bin without a header is "
           "read as 16-bit tokens; give their type: --token-type uint32 (or uint64) --vocab N",
           file.path());
    case Headerless::floats:
      fail(ErrorKind::data,
           "token file '{}' seems to hold floating-point numbers, such as model weights; if it "
           "holds tokens, give their type: --token-type uint16 --vocab N",
           file.path());
    case Headerless::unknown:
      fail(ErrorKind::data,
           "token file '{}' has no header and does not look like 16-bit tokens, the default for "
           ".bin files; if it holds tokens, give their type: --token-type uint16 (or uint8) "
           "--vocab N; {}",
           file.path(), kIfTextOfBin);
  }
  return {.name = "nanoGPT",
          .vocab = kGpt2Vocab,
          .delimiter = vocab == 0 ? std::optional(kGpt2End) : delimiter_of(vocab)};
}

/// Checks and writes the tokens of one file.
class Converter {
 public:
  /// index: null if the format has none.
  Converter(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
            MegatronIndex* index, TokenWriter& writer)
      : path_(path), format_(format), vocab_(vocab), index_(index), writer_(writer) {}

  void add(std::span<const std::int64_t> tokens) {
    check(tokens);
    std::size_t begin = 0;
    for (const std::size_t end : document_ends(tokens)) {
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
  // Returns the offsets in `tokens` at which documents end.
  [[nodiscard]] std::vector<std::size_t> document_ends(std::span<const std::int64_t> tokens) const {
    std::vector<std::size_t> ends;
    if (index_ != nullptr) {
      for (const std::int64_t end : index_->ends_up_to(position_ + std::ssize(tokens))) {
        ends.push_back(static_cast<std::size_t>(end - position_));
      }
      return ends;
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == format_.delimiter) ends.push_back(format_.delimiter_is_first ? i : i + 1);
    }
    return ends;
  }
  void check(std::span<const std::int64_t> tokens) {
    const auto is_outside = [this](std::int64_t token) { return token < 0 || token >= vocab_; };
    const auto outside = std::ranges::find_if(tokens, is_outside);
    if (outside == tokens.end()) {
      highest_ = std::max(highest_, std::ranges::max(tokens));
      return;
    }
    fail(ErrorKind::data,
         "token file '{}': token {} at position {} is outside the vocabulary of {}; give "
         "--vocab N, or check that it is a file of {}",
         path_, text_of(*outside, format_.type), position_ + (outside - tokens.begin()), vocab_,
         format_.name);
  }
  void write(std::span<const std::int64_t> tokens) {
    const std::vector<std::uint32_t> narrow(tokens.begin(), tokens.end());
    std::vector<std::byte> bytes;
    append_tokens(narrow, bytes_per_token(vocab_), bytes);
    writer_.add(bytes);
    open_ += std::ssize(tokens);
  }

  const std::string& path_;
  const BinaryFormat& format_;
  std::int64_t vocab_;
  MegatronIndex* index_;
  TokenWriter& writer_;
  std::int64_t position_ = 0;
  std::int64_t highest_ = -1;
  std::int64_t open_ = 0;  // tokens of the unfinished document
};

}  // namespace

std::optional<BinaryFormat> binary_format_of(const std::string& path, const BinaryHints& hints) {
  if (path == kStandardInput) return std::nullopt;  // read once, as text
  const base::InputFile file = base::InputFile::open(path, kTextFile);
  const std::string start = beginning(file);
  if (auto certain = certain_format(file, start, hints.vocab)) {
    if (!hints.type) return certain;
    fail(ErrorKind::usage,
         "'{}' is a {} file, which records its token type; leave out --token-type", path,
         certain->name);
  }
  if (hints.type) return named_format(file, start, hints);
  const bool is_other =
      !format_by_signature(start).empty() || is_plain_text(start) || !utf16_kind_of(start).empty();
  if (!path.ends_with(".bin") || is_other) return std::nullopt;
  return nanogpt_format(file, start, hints.vocab);
}

std::int64_t convert_binary(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
                            TokenWriter& writer,
                            const std::function<void(std::int64_t)>& on_bytes) {
  constexpr std::int64_t kTokensAtOnce = 1 << 18;
  const base::InputFile file = base::InputFile::open(path, kTextFile);
  const auto index = format.has_index ? MegatronIndex::open(file) : nullptr;
  Converter converter(path, format, vocab, index.get(), writer);
  std::vector<std::byte> bytes;
  for (std::int64_t offset = format.header_bytes; offset < file.size();) {
    const std::int64_t left = (file.size() - offset) / format.type.bytes;
    if (left == 0) {
      fail(ErrorKind::data, "token file '{}' is truncated: it ends within a token; copy it again",
           path);
    }
    bytes.resize(static_cast<std::size_t>(std::min(left, kTokensAtOnce) * format.type.bytes));
    file.read(offset, bytes);
    offset += std::ssize(bytes);
    converter.add(numbers_of(bytes, format.type));
    on_bytes(offset);
  }
  converter.end_document();
  return converter.highest();
}

}  // namespace dtrain::data
