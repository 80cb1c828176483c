// Maps files into memory for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtrain/base/input_file.h"
#include "dtrain/base/mapping_guard.h"

namespace dtrain::base {

/// A regular file mapped for reading. The bytes live as long as the object; moving it does not move
/// them. Touching bytes that are gone, because another process shortened the file or its disk failed,
/// ends this process with a line that names the file, and the status of the role.
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
  MappedFile(std::string path, std::span<const std::byte> bytes, const FileRole& role);

  std::string path_;
  std::span<const std::byte> bytes_;
  MappingGuard guard_;
};

}  // namespace dtrain::base
