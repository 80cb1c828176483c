// Durable operations on files and folders, behind an interface that tests can replace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"

namespace dtrain::base {

/// Keeps a folder open, to detect that its path was moved or replaced.
///
/// Throws:  the constructor: Error{kind} naming the path if it cannot be opened.
/// Threads: any number of callers.
class HeldFolder {
 public:
  HeldFolder(std::string path, ErrorKind kind);

  /// Throws: Error{kind} if the path no longer refers to the folder because it was moved, removed
  ///         or replaced; the path may now belong to another job.
  void check() const;

 private:
  std::string path_;
  ErrorKind kind_;
  Descriptor folder_;
};

/// A new file being written. The destructor closes it and ignores errors.
///
/// Throws:  as its FileSystem. After an error the file must be abandoned: a failed sync must not be
///          retried, because the system may have dropped the unwritten pages.
/// Threads: one caller.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// On return the bytes survive a crash of the machine; the file's name may not.
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// File-system interface. Tests use an implementation that loses unsynced data. The name of a new
/// or renamed file is durable only after sync_folder of its folder.
///
/// Throws:  Error with the path, the failed operation and the reason; StorageError if it is
///          transient.
/// Threads: any number of callers.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Fails if the path exists.
  [[nodiscard]] virtual std::unique_ptr<OutputFile> create_file(const std::string& path) = 0;
  /// No-op if the folder exists.
  virtual void make_folder(const std::string& path) = 0;
  virtual void sync_folder(const std::string& path) = 0;
  /// Atomically replaces a file or empty folder at `to`.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// No-op if the file does not exist.
  virtual void remove_file(const std::string& path) = 0;
  /// Removes an empty folder.
  virtual void remove_folder(const std::string& path) = 0;
};

/// The machine's file systems. Retries transient failures, except when creating, writing or syncing
/// a file, or syncing a folder.
class Disk final : public FileSystem {
 public:
  /// kind: the kind of the errors thrown.
  explicit Disk(ErrorKind kind) : kind_(kind) {}
  /// Calls HeldFolder::check before every change. `folder` must outlive this.
  Disk(const HeldFolder& folder, ErrorKind kind) : kind_(kind), folder_(&folder) {}

  [[nodiscard]] std::unique_ptr<OutputFile> create_file(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove_file(const std::string& path) override;
  void remove_folder(const std::string& path) override;

 private:
  void check_folder() const {
    if (folder_ != nullptr) folder_->check();
  }

  ErrorKind kind_;
  const HeldFolder* folder_ = nullptr;
};

/// Creates `path`, calls `write`, then syncs and closes the file. After a transient storage
/// failure, writes a new file under another name in the same folder and renames it to `path`,
/// because the state of the first file is unknown after a failed write or sync. Replaces an
/// existing regular file.
///
/// write: may be called several times.
void write_with_retries(FileSystem& files, const std::string& path,
                        const std::function<void(OutputFile&)>& write);

/// The folder that contains `path`; "." for a bare name.
[[nodiscard]] std::string parent_folder(std::string_view path);

/// Tracks folders that this process created. Unless keep() was called, the destructor removes those
/// that are empty, newest first, so that a rejected start leaves no folder behind.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(NewFolders&& other) noexcept { made_.swap(other.made_); }
  NewFolders& operator=(NewFolders&&) = delete;
  ~NewFolders();

  /// Creates the folder at `path` and its missing parents. Returns whether `path` itself was
  /// missing; sets `error` if it cannot be created.
  bool add(const std::string& path, std::error_code& error);
  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;
};

/// Writes a file under a temporary name in the same folder; commit() makes it durable and
/// atomically renames it, replacing an existing file. Without commit() the temporary file is
/// removed.
///
/// Throws:  Error{kind} naming the file if it cannot be created, written or renamed, or if the path
///          exists and is not a regular file.
/// Threads: one caller.
class AtomicFile {
 public:
  AtomicFile(std::string path, ErrorKind kind);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes) { file_->write(bytes); }

  /// Overwrites bytes from `offset` on, e.g. a header that is known only at the end.
  void rewrite(std::int64_t offset, std::span<const std::byte> bytes);

  /// On return the file and its name survive a crash of the machine. After an error the file must
  /// be abandoned, as with OutputFile.
  void commit();

 private:
  void create();

  Disk disk_;
  ErrorKind kind_;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<OutputFile> file_;
};

/// Writes `text` through an AtomicFile, and retries after transient storage failures.
void write_atomically(const std::string& path, ErrorKind kind, std::string_view text);

/// Removes temporary files of AtomicFiles for `path` that killed processes left behind: regular
/// files named PATH.tmp-HEX-NUMBER. No other process may be writing `path`.
///
/// Throws: Error{kind} as Disk::remove_file.
void remove_temporaries_of(const std::string& path, ErrorKind kind);

}  // namespace dtrain::base
