// Files read through memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::base {

/// How a file that cannot be read is spoken of: "WHAT 'PATH' does not exist; ADVICE".
struct FileRole {
  ErrorKind kind;
  std::string_view what;    ///< "data file"
  std::string_view advice;  ///< what to do about it
};

/// A regular file mapped for reading. The bytes live as long as the object; moving it does not move
/// them. A file that another process shortens while it is mapped ends this process (SIGBUS).
///
/// Throws:  open(): Error{role.kind} if the file is missing, unreadable, empty or not a regular
///          file.
/// Threads: any number of readers.
class MappedFile {
 public:
  [[nodiscard]] static MappedFile open(const std::string& path, const FileRole& role);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace dtrain::base
