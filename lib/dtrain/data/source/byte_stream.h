// Reads the content of files from front to back, through gzip and zstd.
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

/// The bytes of one file, decompressed where it is compressed.
///
/// Threads: one caller.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// Fills `to`; less only where the file ends. Returns how many bytes that gave.
  ///
  /// Throws: Error{data} naming the file that is shorter than it was, truncated or damaged, with
  ///         the place.
  [[nodiscard]] virtual std::size_t read(std::span<char> to) = 0;
  /// Bytes of the file itself that were read so far.
  [[nodiscard]] virtual std::int64_t consumed() const noexcept = 0;
};

/// Names standard input among paths.
inline constexpr std::string_view kStandardInput = "-";

/// Opens a file, or standard input; its first bytes say how it is compressed.
///
/// on_wait: called again and again while standard input is waited for; may be empty.
///
/// Throws: Error{data} as InputFile::open; what on_wait throws.
[[nodiscard]] std::unique_ptr<ByteStream> open_bytes(const std::string& path,
                                                     const std::function<void()>& on_wait = {});

/// How messages describe a file that is read as text.
inline constexpr base::FileRole kTextFile{base::ErrorKind::data, "data file",
                                          "give a plain text, or a folder of them"};

/// By the first bytes of a file, at least 4 or all.
[[nodiscard]] bool is_gzip(std::string_view start);
/// The same; zstd data may begin with a frame to be skipped, as pzstd writes it.
[[nodiscard]] bool is_zstd(std::string_view start);

}  // namespace dtrain::data
