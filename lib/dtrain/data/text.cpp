#include "dtrain/data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "dtrain/data/source/byte_stream.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;

constexpr std::size_t kExaminedBytes = 64 * 1024;

struct Signature {
  std::string_view bytes;
  std::string_view what;
  std::string_view advice;
};

constexpr std::string_view kDecompress = "decompress it first";
constexpr std::string_view kUnpack = "unpack it, and give the texts in it, or their folder";
constexpr std::string_view kExport = "export its texts as plain text or JSON lines first";
constexpr std::string_view kGiveText = "give a text";

constexpr Signature kSignatures[] = {
    {kTokenMagic, "a token file", "it is prepared already: train on it with --data FILE"},
    {"\x1f\x8b", "gzip-compressed", kDecompress},
    {"PK\x03\x04", "a zip archive", kUnpack},
    {"\x28\xb5\x2f\xfd", "zstd-compressed", kDecompress},
    {"\xfd"
     "7zXZ",
     "xz-compressed", kDecompress},
    {"BZh91AY&SY", "bzip2-compressed", kDecompress},
    {"7z\xbc\xaf\x27\x1c", "a 7z archive", kUnpack},
    {"\x7f"
     "ELF",
     "a program or library", kGiveText},
    {"\x93NUMPY", "a NumPy array", kExport},
    {"\x89PNG", "an image", kGiveText},
    {"\xff\xd8\xff", "an image", kGiveText},
    {"%PDF-", "a PDF document", "extract its text first: pdftotext FILE.pdf FILE.txt"},
    {"PAR1", "a Parquet file", kExport},
    {"ARROW1", "an Arrow file", kExport},
    {"\x89HDF", "an HDF5 file", kExport},
    {"\x80\x02", "a pickle of Python", kExport},
    {"\x80\x04\x95", "a pickle of Python", kExport},
};

constexpr Signature kTar{"", "a tar archive", kUnpack};
constexpr Signature kSafetensors{"", "a safetensors file", kGiveText};
constexpr Signature kBinary{"", "binary (it holds NUL bytes)", "convert it to text first"};

/// Eight bytes of a little-endian length below 4 GiB, then a JSON object.
bool is_safetensors(std::string_view start) {
  return start.size() > 8 && start[8] == '{' &&
         start.substr(4, 4) == std::string_view("\0\0\0\0", 4);
}

bool is_tar(std::string_view start) {
  constexpr std::size_t kPlaceOfMagic = 257;
  return start.size() > kPlaceOfMagic && start.substr(kPlaceOfMagic).starts_with("ustar");
}

/// Null if no signature speaks against a text.
const Signature* signed_as(std::string_view start) {
  for (const Signature& signature : kSignatures) {
    if (start.starts_with(signature.bytes)) return &signature;
  }
  return is_tar(start) ? &kTar : nullptr;
}

/// Null if the bytes look like a text.
const Signature* looks_like(std::string_view start) {
  if (is_safetensors(start)) return &kSafetensors;
  return start.find('\0') == start.npos ? nullptr : &kBinary;
}

[[noreturn]] void refuse_file(const std::string& path, std::string_view what,
                              std::string_view advice) {
  base::fail(ErrorKind::data, "data file '{}' is {}, where plain text is expected; {}", path, what,
             advice);
}

constexpr std::string_view kGiveOther = "give a text, or the tokens that such models train on";

std::string convert_from(std::string_view encoding, const std::string& path) {
  return fmt::format("convert it to UTF-8: iconv -f {} -t UTF-8 {}", encoding, path);
}

std::string make_tokens(const std::string& path) {
  return fmt::format("make a token file of it: dtrain data prepare {} --output FILE.dtok", path);
}

// dtrain data prepare takes tokens without a header from files of this name alone.
std::string make_tokens_without_header(const std::string& path) {
  const bool has_name = path.ends_with(".bin");
  return fmt::format(
      "make a token file of it{}: dtrain data prepare {} --vocab N --output FILE.dtok, with the "
      "vocabulary of its tokenizer (GPT-2's: 50257)",
      has_name ? "" : ", under a name that ends with .bin", has_name ? path : path + ".bin");
}

// GPT-2's vocabulary, rounded up as trainers round it.
constexpr std::uint16_t kLargestVocab = 50304;

struct Magic {
  std::uint32_t number;
  std::string_view what;
  bool has_tokens;
};
constexpr Magic kMagics[] = {{20240520, "a token file of llm.c (GPT-2 tokens)", true},
                             {20240801, "a token file of llm.c (Llama 3 tokens)", true},
                             {20240522, "an evaluation file of llm.c", false},
                             {20240326, "a model of llm.c", false}};

std::uint16_t unit_at(std::string_view bytes, std::size_t index) {
  std::uint16_t unit = 0;
  std::memcpy(&unit, bytes.data() + index * sizeof(unit), sizeof(unit));
  return unit;
}

bool is_printable(std::uint16_t unit) {
  return unit == '\t' || unit == '\n' || unit == '\r' || (unit >= ' ' && unit != 0x7f);
}

// Text of European languages in 16-bit units: nearly all of them below 0x500, none a control.
bool is_utf16(std::string_view bytes, bool is_big_endian) {
  const std::size_t count = bytes.size() / 2;
  std::size_t usual = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t unit = unit_at(bytes, i);
    if (is_big_endian) unit = static_cast<std::uint16_t>(unit << 8 | unit >> 8);
    if (is_printable(unit) && unit < 0x500) ++usual;
  }
  return count > 0 && usual >= count - count / 50;
}

// Recognises the files of nanoGPT's prepare.py: no header, each token below GPT-2's vocabulary. In
// other bytes a quarter of the units would be above.
bool is_16_bit_tokens(std::string_view bytes) {
  constexpr std::size_t kFewestTokens = 32;
  const std::size_t count = bytes.size() / 2;
  if (bytes.size() % 2 != 0 || count < kFewestTokens) return false;
  bool differ = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (unit_at(bytes, i) >= kLargestVocab) return false;
    differ = differ || unit_at(bytes, i) != unit_at(bytes, 0);
  }
  return differ;
}

// A data file's kind that dtrain cannot read, and what to do about it.
struct ForeignData {
  std::string_view what = {};  ///< "UTF-16 text"; empty: nothing is recognised
  std::string advice = {};     ///< "convert it: iconv ..."
};

// start: the first 64 KiB of the file, or all of it. path: for the advice.
ForeignData recognise_foreign(std::string_view start, const std::string& path) {
  using namespace std::string_view_literals;
  if (start.starts_with("\xff\xfe\0\0"sv) || start.starts_with("\0\0\xfe\xff"sv)) {
    return {"UTF-32 text", convert_from("UTF-32", path)};
  }
  if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff")) {
    return {"UTF-16 text", convert_from("UTF-16", path)};
  }
  std::uint32_t number = 0;
  std::memcpy(&number, start.data(), std::min(start.size(), sizeof(number)));
  const auto* magic = std::ranges::find(kMagics, number, &Magic::number);
  if (magic != std::end(kMagics)) {
    return {magic->what, magic->has_tokens ? make_tokens(path) : std::string(kGiveOther)};
  }
  if (start.find('\0') == start.npos) return {};
  if (is_utf16(start, false)) return {"UTF-16 text", convert_from("UTF-16LE", path)};
  if (is_utf16(start, true)) return {"UTF-16 text", convert_from("UTF-16BE", path)};
  if (is_16_bit_tokens(start)) {
    return {"probably 16-bit tokens without a header, as nanoGPT's prepare.py writes them",
            make_tokens_without_header(path)};
  }
  return {};
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

bool is_named_json_lines(std::string_view path) {
  for (const std::string_view suffix : {".gz", ".zst"}) {
    if (path.ends_with(suffix)) path.remove_suffix(suffix.size());
  }
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

void check_needs_no_preparing(std::string_view start, const std::string& path) {
  if (is_named_json_lines(path)) {
    fail(ErrorKind::data,
         "data file '{}' is JSON lines by its name; make a token file of the field that holds the "
         "text: dtrain data prepare {} --field text --output FILE.dtok",
         path, path);
  }
  const std::string_view format = is_gzip(start) ? "gzip" : is_zstd(start) ? "zstd" : "";
  if (format.empty()) return;
  fail(ErrorKind::data,
       "data file '{}' is {}-compressed; make a token file of it: dtrain data prepare {} --output "
       "FILE.dtok",
       path, format, path);
}

void check_is_text(std::string_view start, const std::string& path) {
  start = start.substr(0, kExaminedBytes);
  if (const Signature* found = signed_as(start)) refuse_file(path, found->what, found->advice);
  if (const ForeignData foreign = recognise_foreign(start, path); !foreign.what.empty()) {
    refuse_file(path, foreign.what, foreign.advice);
  }
  if (const Signature* found = looks_like(start)) refuse_file(path, found->what, found->advice);
}

void refuse_standard_input(const std::string& path) {
  if (path != "-") return;
  fail(ErrorKind::data,
       "data file '{}': standard input cannot be read as data, for it is read more than once; "
       "write it to a file first",
       path);
}

void refuse_folder(const std::string& path) {
  refuse_standard_input(path);
  std::error_code error;
  if (path.starts_with("~/") && !std::filesystem::exists(path, error)) {
    fail(ErrorKind::data,
         "data file '{}' does not exist: shells replace ~ only at the beginning of a word without "
         "quotes; put a space in place of =, or give the full path",
         path);
  }
  if (!std::filesystem::is_directory(path, error)) return;
  if (std::filesystem::exists(path + "/config.json", error)) {
    fail(ErrorKind::data,
         "data file '{}' is the folder of a run: name a text or token file; to resume the run, "
         "dtrain --run-dir {} --resume auto",
         path, path);
  }
  fail(ErrorKind::data,
       "data file '{}' is a directory; make one token file of all it holds: dtrain data prepare {} "
       "--output FILE.dtok",
       path, path);
}

const base::FileRole& data_file_role() {
  static constexpr base::FileRole kRole{ErrorKind::data, "data file",
                                        "give a token file or a plain text"};
  return kRole;
}

}  // namespace dtrain::data
