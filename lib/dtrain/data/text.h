// Detects plain text.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/input_file.h"

namespace dtrain::data {

/// The first bytes of a token file. Neither text nor ASCII transfer leaves them intact.
inline constexpr std::string_view kTokenMagic =
    "\x89"
    "DTOK\r\n\x1a";

/// Returns whether a file starts like a token file; true also for one cut within these bytes.
///
/// start: at least its first 8 bytes, or all.
[[nodiscard]] bool is_token_file(std::string_view start);

/// Refuses content that is no text: compressed files, archives, programs, tensors, token files of
/// other trainers, UTF-16, whatever holds a NUL byte in its first 64 KiB or is evidently tokens
/// (headerless.h), and a .bin that is not UTF-8.
///
/// start: at least the first 64 KiB, or all. path: for messages.
///
/// Throws: Error{data} naming the file, what it looks like and what to do.
void check_is_text(std::string_view start, const std::string& path);

/// Whether the first 64 KiB of a file are UTF-8.
///
/// start: as check_is_text.
[[nodiscard]] bool is_utf8(std::string_view start);

/// Whether a file begins as UTF-8 text: without NUL bytes, and hardly any other control characters.
///
/// start: as check_is_text.
[[nodiscard]] bool is_plain_text(std::string_view start);

/// What a file is by its first bytes, at least three of which are its format's: "a zip archive";
/// empty if they are of none.
///
/// start: as check_is_text.
[[nodiscard]] std::string_view format_by_signature(std::string_view start);

/// "LE" or "BE" for UTF-16 text without a mark; empty for all else.
[[nodiscard]] std::string_view utf16_kind_of(std::string_view start);

/// Refuses JSON, by its content or its name, which read as text would train a model of JSON.
///
/// start: as check_is_text; empty: the name alone decides.
///
/// Throws: Error{usage} naming the file, its fields, and the flags of `dtrain data prepare` for it.
void check_is_no_json(std::string_view start, const std::string& path);

/// Refuses what `dtrain data prepare` reads and nothing else does: compressed files and JSON.
///
/// start: as check_is_text.
///
/// Throws: Error{data} naming the file and the command.
void check_needs_no_preparing(std::string_view start, const std::string& path);

/// What to do with a .bin that is a text, but not UTF-8.
inline constexpr std::string_view kIfTextOfBin =
    "if it is a text, convert it with iconv, or rename it";

/// The first 64 KiB of a file, or all of it.
[[nodiscard]] std::string beginning(const base::InputFile& file);

/// The whole numbers that bytes begin with, in this machine's byte order.
template <typename Number>
[[nodiscard]] std::vector<Number> numbers_in(std::span<const std::byte> bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  }
  return numbers;
}

/// Throws: Error{data} that says how to make a token file of a folder or standard input ("-"), if
///         `path` is one; or that ~ was not replaced.
void refuse_folder(const std::string& path);

/// How a data file that cannot be read is spoken of.
inline constexpr base::FileRole kDataFile{base::ErrorKind::data, "data file",
                                          "give a token file or a plain text"};

}  // namespace dtrain::data
