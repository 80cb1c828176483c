// Sequential readers of plain, gzip and zstd files and of standard input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/io/input_file.h"

namespace dtrain::data {

/// The decompressed bytes of one file.
///
/// Threads: one caller.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// Fills `to` and returns the number of bytes read, which is smaller only at the end of the file.
  ///
  /// Throws: Error{data} naming the file and offset if the file shrank, is truncated, is damaged or
  ///         has other bytes after its compressed data.
  [[nodiscard]] virtual std::size_t read(std::span<char> to) = 0;
  /// Bytes read so far, as stored on disk.
  [[nodiscard]] virtual std::int64_t consumed() const noexcept = 0;
};

/// The path that denotes standard input.
inline constexpr std::string_view kStandardInput = "-";

/// Opens a file or standard input; detects compression by the first bytes.
///
/// on_wait: called repeatedly during a wait for standard input; may be empty.
///
/// Throws: Error{data} as InputFile::open; any exception of on_wait.
[[nodiscard]] std::unique_ptr<ByteStream> open_bytes(const std::string& path,
                                                     const std::function<void()>& on_wait = {});

/// How messages describe a file that is read as text.
inline constexpr base::FileRole kTextFile{base::ErrorKind::data, "data file",
                                          "give a plain text, or a folder of them"};

/// Returns whether a file is gzip-compressed. start: at least the first 4 bytes, or the whole file.
[[nodiscard]] bool is_gzip(std::string_view start);
/// As is_gzip, for zstd. A zstd file may begin with a skippable frame, as pzstd writes it.
[[nodiscard]] bool is_zstd(std::string_view start);

}  // namespace dtrain::data
