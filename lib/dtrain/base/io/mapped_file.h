// Read-only memory mapping of files; turns page faults on truncated files or failed disks into an
// error line and an exit status.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/io/input_file.h"

namespace dtrain::base {

/// Guards a mapping: a SIGBUS within `bytes` (the file was truncated, its disk failed) ends the
/// process with "dtrain: error: MESSAGE" and the status of `kind`, without running destructors.
/// Every other SIGBUS keeps its previous action: faults elsewhere, machine memory errors, signals
/// sent by a process.
///
/// Threads: any; the handler takes no locks and allocates nothing.
class MappingGuard {
 public:
  MappingGuard() = default;
  MappingGuard(std::span<const std::byte> bytes, ErrorKind kind, std::string_view message);

  struct Entry;

 private:
  struct Release {
    void operator()(Entry* entry) const;
  };

  std::unique_ptr<Entry, Release> entry_;
};

/// A regular file mapped for reading. The bytes live as long as the object; moving it does not move
/// them. Accessing missing bytes, because another process truncated the file or its disk failed,
/// ends this process with a line that names the file, and the role's status.
///
/// Throws:  open(): as InputFile::open.
/// Threads: any number of readers.
class MappedFile {
 public:
  [[nodiscard]] static MappedFile open(const std::string& path, const FileRole& role);

  /// Empty after the object was moved from.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {memory_.get(), memory_ ? memory_.get_deleter().size : 0};
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  struct Unmap {
    std::size_t size;  // bytes
    void operator()(const std::byte* memory) const;
  };

  MappedFile() = default;

  std::string path_;
  std::unique_ptr<const std::byte, Unmap> memory_;
  MappingGuard guard_;
};

}  // namespace dtrain::base
