#include "dtrain/data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "dtrain/data/source/byte_stream.h"
#include "dtrain/data/source/json_records.h"
#include "dtrain/data/source/json_text.h"
#include "dtrain/data/tokenizer/utf8.h"
#include "dtrain/data/tokens/headerless.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;

constexpr std::size_t kExaminedBytes = 64 * 1024;

using namespace std::string_view_literals;

/// A format whose files hold `bytes` at offset `at`. advice: {} stands for the file's path.
struct Signature {
  std::string_view bytes;
  std::string_view what;
  std::string_view advice;
  std::size_t at = 0;
};

constexpr std::string_view kDecompress = "decompress it first";
constexpr std::string_view kUnpack = "unpack it and give the texts in it, or their folder";
constexpr std::string_view kExport = "export its texts as plain text or JSON lines first";
constexpr std::string_view kSaveArray =
    "save its tokens as a flat NumPy array: numpy.save('FILE.npy', numpy.asarray(tokens))";
constexpr std::string_view kGiveText = "give a text";
constexpr std::string_view kExportText = "save it as plain text first";
constexpr std::string_view kGiveOther = "give a text, or a token file";
constexpr std::string_view kPrepare =
    "make a token file of it: dtrain data prepare {} --output FILE.dtok";
constexpr std::string_view kPrepareArray =
    "make a token file of it: dtrain data prepare {} --vocab N --output FILE.dtok";
constexpr std::string_view kFromUtf16 = "convert it to UTF-8: iconv -f UTF-16 -t UTF-8 {}";
constexpr std::string_view kFromUtf32 = "convert it to UTF-8: iconv -f UTF-32 -t UTF-8 {}";

// The first match counts: the byte order mark of UTF-32 begins like that of UTF-16.
constexpr Signature kSignatures[] = {
    {kTokenMagic, "a token file", "it is already prepared: train on it with --data FILE"},
    {"\x1f\x8b\x08", "gzip-compressed", kDecompress},
    {"PK\x03\x04", "a zip archive", kUnpack},
    {"PK\x05\x06", "a zip archive", kUnpack},
    {"\x28\xb5\x2f\xfd", "zstd-compressed", kDecompress},
    {"\xfd"
     "7zXZ",
     "xz-compressed", kDecompress},
    // After "BZh" and the level: the first block, or the end of an empty file.
    {"1AY&SY", "bzip2-compressed", kDecompress, 4},
    {"\x17rE8P\x90", "bzip2-compressed", kDecompress, 4},
    {"7z\xbc\xaf\x27\x1c", "a 7z archive", kUnpack},
    {"\x7f"
     "ELF",
     "a program or library", kGiveText},
    {"\x93NUMPY", "a NumPy array", kPrepareArray},
    {"\x89PNG", "an image", kGiveText},
    {"\xff\xd8\xff", "an image", kGiveText},
    {"GIF87a", "an image", kGiveText},
    {"GIF89a", "an image", kGiveText},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a Microsoft Office document", kExportText},
    {"{\\rtf", "an RTF document", kExportText},
    {"%!PS-", "a PostScript document", "extract its text first: ps2txt FILE.ps FILE.txt"},
    {"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch it: git lfs pull"},
    {"GGUF\x02\0\0\0"sv, "a GGUF model file", kGiveText},
    {"GGUF\x03\0\0\0"sv, "a GGUF model file", kGiveText},
    {"%PDF-", "a PDF document", "extract its text first: pdftotext FILE.pdf FILE.txt"},
    {"PAR1", "a Parquet file", kExport},
    {"ARROW1", "an Arrow file", kExport},
    {"\xff\xff\xff\xff", "an Arrow stream", kExport},  // as Hugging Face's datasets save it
    {"MMIDIDX", "a Megatron index", "give the .bin beside it"},
    {"\x89HDF", "an HDF5 file", kExport},
    {"\x80\x02\x8a\x0a", "a PyTorch file", kSaveArray},
    {"\x80\x02", "a Python pickle", kExport},
    {"\x80\x03", "a Python pickle", kExport},
    {"\x80\x04", "a Python pickle", kExport},
    {"\x80\x05", "a Python pickle", kExport},
    {"(lp0\n", "a Python pickle", kExport},
    {"(dp0\n", "a Python pickle", kExport},
    {"SQLite format 3", "an SQLite database", kExport},
    {"Obj\x01", "an Avro file", kExport},
    {"Rar!\x1a\x07", "a RAR archive", kUnpack},
    {"\x04\x22\x4d\x18", "lz4-compressed", kDecompress},
    {"ustar\0"sv, "a tar archive", kUnpack, 257},
    {"ustar  \0"sv, "a tar archive", kUnpack, 257},
    {"\xff\xfe\0\0"sv, "UTF-32 text", kFromUtf32},
    {"\0\0\xfe\xff"sv, "UTF-32 text", kFromUtf32},
    {"\xff\xfe", "UTF-16 text", kFromUtf16},
    {"\xfe\xff", "UTF-16 text", kFromUtf16},
    {"\x88\xd8\x34\x01", "an llm.c token file (GPT-2 tokens)", kPrepare},
    {"\xa1\xd9\x34\x01", "an llm.c token file (Llama 3 tokens)", kPrepare},
    {"\x8a\xd8\x34\x01", "an llm.c evaluation file", kGiveOther},
    {"\xc6\xd7\x34\x01", "an llm.c model", kGiveOther},
};

/// Eight bytes of a little-endian length below 4 GiB, then a JSON object.
bool is_safetensors(std::string_view start) {
  return start.size() > 9 && start.substr(4, 5) == "\0\0\0\0{"sv &&
         (start[9] == '"' || start[9] == '}') &&
         start.substr(10, 1) != "\0"sv;  // unlike a 64-bit token
}

bool is_named_json_lines(std::string_view path) {
  for (const std::string_view suffix : {".gz", ".zst"}) {
    if (path.ends_with(suffix)) path.remove_suffix(suffix.size());
  }
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

/// Evidence that a file is JSON.
struct JsonFound {
  std::string why;  ///< completes "JSON..." in messages
  bool has_objects = true;
};

// Empty if the file is not JSON.
std::optional<JsonFound> json_found(std::string_view start, const std::string& path) {
  if (begins_as_json(start)) {
    const std::string_view first = first_record(start);
    if (first.starts_with('"')) return JsonFound{" (an array of strings)", false};
    return JsonFound{fmt::format(" (its first object has texts in: {})", text_fields(first))};
  }
  if (is_named_json_lines(path)) return JsonFound{" lines by its name"};
  return std::nullopt;
}

[[noreturn]] void refuse_file(const std::string& path, std::string_view what,
                              std::string_view advice) {
  base::fail(ErrorKind::data, "data file '{}' is {}, where plain text is expected; {}", path, what,
             fmt::format(fmt::runtime(advice), path));
}

// What to do before `dtrain data prepare` can read tokens, which must be in uncompressed files;
// empty: nothing.
std::optional<std::string_view> step_before_tokens(const std::string& path) {
  if (path == kStandardInput) return "write it to a file first";
  const std::string start = beginning(base::InputFile::open(path, kDataFile));
  return is_gzip(start) || is_zstd(start) ? std::optional(kDecompress) : std::nullopt;
}

[[noreturn]] void refuse_tokens(const std::string& path, std::string_view what,
                                std::string_view advice) {
  refuse_file(path, what, step_before_tokens(path).value_or(advice));
}

std::uint16_t swapped(std::uint16_t unit) {
  return static_cast<std::uint16_t>(unit << 8 | unit >> 8);
}

// Nearly all 16-bit units of European text are below 0x500, and none is a control character.
bool is_usual(std::uint16_t unit) {
  const bool is_space = unit == '\t' || unit == '\n' || unit == '\r';
  return is_space || (unit >= ' ' && unit != 0x7f && unit < 0x500);
}

// At least 98 % of the units are usual and more than 5 % are spaces, unlike tokens of a small
// vocabulary.
bool is_utf16_text(const std::vector<std::uint16_t>& units) {
  const std::int64_t count = std::ssize(units);
  return count > 0 && std::ranges::count_if(units, is_usual) >= count - count / 50 &&
         std::ranges::count(units, ' ') > count / 20;
}

// At least 32 numbers below `limit`, not all equal. In other binary data some would be above.
template <typename Number>
bool are_tokens(std::string_view start, Number limit) {
  constexpr std::size_t kFewestTokens = 32;
  const auto numbers = numbers_in<Number>(std::as_bytes(std::span(start)));
  return numbers.size() >= kFewestTokens && start.size() % sizeof(Number) == 0 &&
         std::ranges::max(numbers) < limit &&
         std::ranges::adjacent_find(numbers, std::ranges::not_equal_to()) != numbers.end();
}

// The likely type of a file's tokens, used only for advice; empty if it does not look like tokens.
std::string_view likely_token_type(std::string_view start) {
  constexpr std::uint32_t kLargestVocab = 1 << 20;
  if (are_tokens<std::uint64_t>(start, kLargestVocab)) return "uint64";
  if (are_tokens<std::uint32_t>(start, kLargestVocab)) return "uint32";
  if (are_tokens<std::uint16_t>(start, kGpt2LargestVocab)) return "uint16";
  return {};
}

[[noreturn]] void refuse_tokens_without_header(const std::string& path, std::string_view type) {
  const bool is_nanogpt = type == "uint16";
  // data prepare recognises nanoGPT's own files without a type.
  const bool needs_type = !is_nanogpt || !path.ends_with(".bin");
  const std::string advice = fmt::format(
      "make a token file of it: dtrain data prepare {{}} {}--vocab N --output FILE.dtok, with the "
      "vocabulary of its tokenizer (GPT-2's: 50257)",
      needs_type ? fmt::format("--token-type {} ", type) : "");
  refuse_tokens(path,
                fmt::format("probably {} tokens without a header{}", type,
                            is_nanogpt ? ", as nanoGPT's prepare.py writes them" : ""),
                advice);
}

// Recognises PyTorch and NumPy archives by the name of their first entry, at offset 30.
void refuse_arrays_in_zip(std::string_view start, const std::string& path) {
  constexpr std::size_t kNameAt = 30;
  if (!start.starts_with("PK\x03\x04") || start.size() < kNameAt) return;
  const auto length = numbers_in<std::uint16_t>(std::as_bytes(std::span(start.substr(26, 2))))[0];
  const std::string_view name = start.substr(kNameAt, length);
  if (name.ends_with("/data.pkl")) refuse_file(path, "a PyTorch file", kSaveArray);
  if (name.ends_with(".npy")) refuse_file(path, "NumPy arrays (.npz)", kSaveArray);
}

// Control characters other than white space, backspace and escape.
bool is_control(char c) {
  const auto code = static_cast<unsigned char>(c);
  const bool is_usual = ('\b' <= c && c <= '\r') || c == '\x1b';
  return (code < ' ' && !is_usual) || c == '\x7f';
}

// Text has very few of them; in binary numbers about every tenth byte is one.
bool has_many_controls(std::string_view start) {
  return std::ranges::count_if(start, is_control) > std::ssize(start) / 50;
}

// Tokens without a NUL byte. Other binary data may be intended as is.
bool are_evidently_tokens(std::string_view start) {
  return has_many_controls(start) && !likely_token_type(start).empty() &&
         examine_headerless(std::as_bytes(std::span(start))) != Headerless::unknown;
}

}  // namespace

std::string beginning(const base::InputFile& file) {
  std::string start(std::min(static_cast<std::size_t>(file.size()), kExaminedBytes), '\0');
  file.read(0, std::as_writable_bytes(std::span(start)));
  return start;
}

bool is_token_file(std::string_view start) {
  return start.substr(0, kTokenMagic.size()) == kTokenMagic.substr(0, start.size());
}

void check_is_no_json(std::string_view start, const std::string& path) {
  const auto found = json_found(start, path);
  if (!found) return;
  if (!found->has_objects) {
    fail(ErrorKind::usage, "data file '{}' is JSON{}; to train on the JSON itself, give --as-text",
         path, found->why);
  }
  fail(
      ErrorKind::usage,
      "data file '{}' is JSON{}; name the field that holds the text with --field NAME, or train on "
      "the JSON itself with --as-text",
      path, found->why);
}

void check_needs_no_preparing(std::string_view start, const std::string& path) {
  const auto found = json_found(start, path);
  if (found && !found->has_objects) {
    fail(ErrorKind::data,
         "data file '{}' is JSON{}; make a token file of the JSON itself: dtrain data prepare {} "
         "--as-text --output FILE.dtok",
         path, found->why, path);
  }
  if (found) {
    fail(
        ErrorKind::data,
        "data file '{}' is JSON{}; make a token file of the field that holds the text: dtrain data "
        "prepare {} --field NAME --output FILE.dtok (--as-text instead of --field keeps the JSON)",
        path, found->why, path);
  }
  const std::string_view format = is_gzip(start) ? "gzip" : is_zstd(start) ? "zstd" : "";
  if (format.empty()) return;
  fail(ErrorKind::data,
       "data file '{}' is {}-compressed; make a token file of it: dtrain data prepare {} --output "
       "FILE.dtok",
       path, format, path);
}

bool is_utf8(std::string_view start) {
  start = start.substr(0, kExaminedBytes);
  // The examined bytes may end within a character.
  return !invalid_utf8_at(start.size() == kExaminedBytes ? start.substr(0, whole_characters(start))
                                                         : start);
}

bool is_plain_text(std::string_view start) {
  start = start.substr(0, kExaminedBytes);
  return start.find('\0') == start.npos && !has_many_controls(start) && is_utf8(start);
}

std::string_view format_by_signature(std::string_view start) {
  constexpr std::size_t kFewestBytes = 3;
  for (const Signature& known : kSignatures) {
    if (known.bytes.size() < kFewestBytes || start.size() < known.at) continue;
    if (start.substr(known.at).starts_with(known.bytes)) return known.what;
  }
  return is_safetensors(start) ? "a safetensors file" : "";
}

std::string_view utf16_kind_of(std::string_view start) {
  auto units = numbers_in<std::uint16_t>(std::as_bytes(std::span(start)));
  if (is_utf16_text(units)) return "LE";
  std::ranges::transform(units, units.begin(), swapped);
  return is_utf16_text(units) ? "BE" : "";
}

void check_is_text(std::string_view start, const std::string& path) {
  start = start.substr(0, kExaminedBytes);
  refuse_arrays_in_zip(start, path);
  for (const Signature& known : kSignatures) {
    if (start.size() < known.at || !start.substr(known.at).starts_with(known.bytes)) continue;
    const bool is_tokens = known.advice == kPrepare || known.advice == kPrepareArray;
    if (is_tokens) refuse_tokens(path, known.what, known.advice);
    refuse_file(path, known.what, known.advice);
  }
  const bool has_nul = start.find('\0') != start.npos;
  const bool is_named_binary = path.ends_with(".bin") && !is_plain_text(start);
  if (!has_nul && !is_named_binary && !are_evidently_tokens(start)) return;
  if (const auto kind = utf16_kind_of(start); has_nul && !kind.empty()) {
    refuse_file(path, "UTF-16 text",
                fmt::format("convert it to UTF-8: iconv -f UTF-16{} -t UTF-8 {{}}", kind));
  }
  if (is_safetensors(start)) refuse_file(path, "a safetensors file", kGiveText);
  if (const auto type = likely_token_type(start); !type.empty()) {
    refuse_tokens_without_header(path, type);
  }
  constexpr std::string_view kIfTokens =
      "if it holds tokens, make a token file of it: dtrain data prepare {} --token-type TYPE "
      "--vocab N --output FILE.dtok";
  if (has_nul) {
    refuse_file(path, "binary (it holds NUL bytes)",
                fmt::format("convert it to text first, or, {}", kIfTokens));
  }
  refuse_file(path, "not UTF-8, which text in a .bin must be",
              fmt::format("{}; {}", kIfTextOfBin, kIfTokens));
}

void refuse_folder(const std::string& path) {
  if (path == kStandardInput) {
    fail(
        ErrorKind::data,
        "data file '{}': cannot train on standard input, since data is read more than once; make a "
        "token file of it: dtrain data prepare - --output FILE.dtok",
        path);
  }
  std::error_code error;
  if (path.starts_with("~/") && !std::filesystem::exists(path, error)) {
    fail(ErrorKind::data,
         "data file '{}' does not exist: the shell expands ~ only at the beginning of an unquoted "
         "word; use a space instead of =, or give the full path",
         path);
  }
  if (!std::filesystem::is_directory(path, error)) return;
  if (std::filesystem::exists(path + "/config.json", error)) {
    fail(ErrorKind::data,
         "data file '{}' is a run folder; give a text or token file, or, to resume the run: "
         "dtrain --run-dir {} --resume auto",
         path, path);
  }
  fail(ErrorKind::data,
       "data file '{}' is a directory; make one token file of its files: dtrain data prepare {} "
       "--output FILE.dtok",
       path, path);
}

}  // namespace dtrain::data
