// Detects plain text and recognises other formats by their first bytes.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/input_file.h"

namespace dtrain::data {

/// The first bytes of a token file. No text begins with them. They contain line ends, so that a
/// transfer in text mode, which changes these, is detected.
inline constexpr std::string_view kTokenMagic =
    "\x89"
    "DTOK\r\n\x1a";

/// Returns whether a file begins with kTokenMagic or, if it is shorter, with a part of it.
///
/// start: at least its first 8 bytes, or the whole file.
[[nodiscard]] bool is_token_file(std::string_view start);

/// Rejects content that is not text: compressed files, archives, programs, tensors, token files of
/// other trainers, UTF-16, any file with a NUL byte in its first 64 KiB, headerless tokens
/// (headerless.h), and a .bin file that is not UTF-8.
///
/// start: at least the first 64 KiB, or the whole file. path: for messages.
///
/// Throws: Error{data} naming the file, its likely format and what to do.
void check_is_text(std::string_view start, const std::string& path);

/// Returns whether the first 64 KiB of a file are UTF-8.
///
/// start: as check_is_text.
[[nodiscard]] bool is_utf8(std::string_view start);

/// Returns whether a file begins as UTF-8 text: no NUL bytes, hardly any other control characters.
///
/// start: as check_is_text.
[[nodiscard]] bool is_plain_text(std::string_view start);

/// Returns the format of a file with a known signature of at least three bytes, as in "a zip
/// archive"; empty if no signature matches.
///
/// start: as check_is_text.
[[nodiscard]] std::string_view format_by_signature(std::string_view start);

/// Returns "LE" or "BE" for UTF-16 text without a byte order mark; otherwise empty.
[[nodiscard]] std::string_view utf16_kind_of(std::string_view start);

/// Rejects JSON, recognised by content or name, because training on it as plain text is a mistake.
///
/// start: as check_is_text; if empty, only the name is checked.
///
/// Throws: Error{usage} naming the file, its fields, and the flags of `dtrain data prepare` to use.
void check_is_no_json(std::string_view start, const std::string& path);

/// Rejects the inputs that only `dtrain data prepare` reads: compressed files and JSON.
///
/// start: as check_is_text.
///
/// Throws: Error{data} naming the file and the command.
void check_needs_no_preparing(std::string_view start, const std::string& path);

/// Advice for a .bin file that may be text but is not UTF-8.
inline constexpr std::string_view kIfTextOfBin =
    "if it is text, convert it to UTF-8 with iconv, or rename it";

/// Reads the first 64 KiB of a file, or all of it.
[[nodiscard]] std::string beginning(const base::InputFile& file);

/// Reinterprets bytes as native-endian numbers; a partial number at the end is dropped.
template <typename Number>
[[nodiscard]] std::vector<Number> numbers_in(std::span<const std::byte> bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  }
  return numbers;
}

/// Rejects paths that cannot be trained on directly.
///
/// Throws: Error{data} if `path` is a folder or standard input ("-"), with the command that makes a
///         token file of it, or if its ~ was not expanded.
void refuse_folder(const std::string& path);

/// How messages describe a data file.
inline constexpr base::FileRole kDataFile{base::ErrorKind::data, "data file",
                                          "give a token file or a plain text"};

}  // namespace dtrain::data
