#include "dtrain/data/text.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>

#include "dtrain/data/foreign_tokens.h"
#include "dtrain/data/source/compressed.h"

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

[[noreturn]] void refuse(const std::string& path, std::string_view what, std::string_view advice) {
  base::fail(ErrorKind::data, "data file '{}' is {}, where plain text is expected; {}", path, what,
             advice);
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
  if (const Signature* found = signed_as(start)) refuse(path, found->what, found->advice);
  if (const ForeignData foreign = recognise_foreign(start, path); !foreign.what.empty()) {
    refuse(path, foreign.what, foreign.advice);
  }
  if (const Signature* found = looks_like(start)) refuse(path, found->what, found->advice);
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
