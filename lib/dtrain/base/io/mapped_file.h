// Maps files into memory for reading, and turns a fault in such memory into an error line and an
// exit status.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/io/input_file.h"

namespace dtrain::base {

/// While it exists, a page of `bytes` that the system cannot provide (the file was shortened, its
/// disk failed) ends the process with "dtrain: error: MESSAGE" and the status of `kind`, from
/// whichever thread touched it: no destructor runs. Every other SIGBUS stays what it was: a fault
/// elsewhere, a memory error of the machine, a signal sent by a process.
///
/// Threads: any; faults are handled without locks and without memory.
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
/// them. Touching bytes that are gone, because another process shortened the file or its disk
/// failed, ends this process with a line that names the file, and the status of the role.
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
