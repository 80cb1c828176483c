// Writes files that exist whole or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/file_system.h"

namespace dtrain::base {

/// Writes a file under a temporary name in the same folder; commit() makes it durable and gives it
/// its name in one step, replacing what was there. Without commit() the temporary file is removed.
///
/// Throws:  Error{kind} naming the file if it cannot be created, written or renamed, or if the path
///          leads to something else than a regular file.
/// Threads: one caller.
class AtomicFile {
 public:
  AtomicFile(std::string path, ErrorKind kind);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes) { file_->write(bytes); }

  /// Replaces bytes that were written, from `offset` on: a header that is known at the end.
  void rewrite(std::int64_t offset, std::span<const std::byte> bytes);

  /// On return the file and its name survive a crash of the machine. After an error the file must
  /// be given up, as an OutputFile.
  void commit();

 private:
  void create();

  Disk disk_;
  ErrorKind kind_;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<OutputFile> file_;
};

/// Writes `text` as an AtomicFile, and anew while the storage fails in passing.
void write_atomically(const std::string& path, ErrorKind kind, std::string_view text);

/// Removes what AtomicFiles of `path` in killed processes have left: regular files named
/// PATH.tmp-HEX-NUMBER, and nothing else. No other process may be writing it.
///
/// Throws: Error{kind} as Disk::remove_file.
void remove_temporaries_of(const std::string& path, ErrorKind kind);

}  // namespace dtrain::base
