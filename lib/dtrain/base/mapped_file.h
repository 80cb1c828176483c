// Maps files into memory for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtrain/base/input_file.h"

namespace dtrain::base {

/// A regular file mapped for reading. The bytes live as long as the object; moving it does not move
/// them. A file that another process shortens while it is mapped ends this process (SIGBUS).
///
/// Throws:  open(): as InputFile::open.
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
