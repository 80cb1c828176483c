// Positioned reads of regular files, with retries and uniform errors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"

namespace dtrain::base {

/// Wording and kind of a file's errors: "WHAT 'PATH' does not exist; ADVICE".
struct FileRole {
  ErrorKind kind;
  std::string_view what;    ///< "data file"
  std::string_view advice;  ///< what to do about it
};

/// A regular file open for reading. Unlike with a MappedFile, a truncated file or failed disk
/// throws instead of ending the process.
///
/// Throws:  open(): Error{role.kind} if the file is missing, empty or not a regular file, FileError
///          of that kind if it is not readable; StorageError if a transient failure outlasts the
///          retries.
/// Threads: any number of readers.
class InputFile {
 public:
  [[nodiscard]] static InputFile open(const std::string& path, const FileRole& role);

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

  /// Fills `to` with the bytes from `offset` on.
  ///
  /// Throws: Error{role.kind} naming the file if it ends before them; FileError if it cannot be
  ///         read.
  void read(std::int64_t offset, std::span<std::byte> to) const;

  /// Calls f(piece) for bytes [offset, offset + size) in order, in pieces of 1 MiB.
  ///
  /// Throws: as read, and what f throws.
  template <typename F>
  void read_in_pieces(std::int64_t offset, std::int64_t size, F f) const {
    constexpr std::int64_t kPiece = std::int64_t{1} << 20;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPiece, size)));
    for (const std::int64_t end = offset + size; offset < end; offset += kPiece) {
      const std::span piece =
          std::span(buffer).first(static_cast<std::size_t>(std::min(kPiece, end - offset)));
      read(offset, piece);
      f(std::span<const std::byte>(piece));
    }
  }

 private:
  InputFile(std::string path, const FileRole& role) : path_(std::move(path)), role_(role) {}
  [[noreturn]] void refuse(std::string_view found, int error = 0) const;
  void open_again() const;

  std::string path_;
  FileRole role_;
  std::int64_t size_ = 0;  // bytes
  timespec modified_{};    // modification time at open()
  Descriptor descriptor_;
};

/// The content of a regular file, which may be empty.
///
/// Throws: as InputFile.
[[nodiscard]] std::string content_of(const std::string& path, const FileRole& role);

/// Throws: as InputFile::read.
[[nodiscard]] std::string content_of(const InputFile& file);

}  // namespace dtrain::base
