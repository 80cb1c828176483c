// Operations on files and folders that must survive crashes.
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

/// The folder that a path led to at construction, open until destruction.
///
/// Throws:  Error{kind} naming the path: construction if it cannot be opened.
/// Threads: any number of callers.
class HeldFolder {
 public:
  HeldFolder(std::string path, ErrorKind kind);

  /// Throws: Error{kind} if the path no longer leads to the folder: it was moved, removed or
  ///         replaced, and what is there now may belong to another job.
  void check() const;

 private:
  std::string path_;
  ErrorKind kind_;
  Descriptor folder_;
};

/// A new file being written. Destruction closes it; what close() would have reported is lost then.
///
/// Throws:  what its FileSystem throws. After an error the file must be given up: a failed sync is
///          never tried again, because the system may have dropped what it could not write.
/// Threads: one caller.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// On return the bytes survive a crash of the machine; the file's name may not.
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// An interface, so that tests can use a file system that forgets what was not synced. Names become
/// durable only through sync_folder of the folder they are in.
///
/// Throws:  Error naming the path, what could not be done and why; StorageError if that may pass.
/// Threads: any number of callers.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Refuses a path that exists.
  [[nodiscard]] virtual std::unique_ptr<OutputFile> create_file(const std::string& path) = 0;
  /// Leaves a folder that exists as it is.
  virtual void make_folder(const std::string& path) = 0;
  virtual void sync_folder(const std::string& path) = 0;
  /// Takes the place of a file or empty folder of that name, in one step.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Leaves what does not exist.
  virtual void remove_file(const std::string& path) = 0;
  /// Removes an empty folder.
  virtual void remove_folder(const std::string& path) = 0;
};

/// The machine's own file systems. Calls that fail in passing are repeated; not so the creation,
/// writing and syncing of a file, nor the syncing of a folder.
class Disk final : public FileSystem {
 public:
  /// kind: of the errors it throws.
  explicit Disk(ErrorKind kind) : kind_(kind) {}
  /// Every change is refused as by HeldFolder::check. `folder` must outlive this.
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

/// Creates `path`, hands it to `write`, syncs and closes it. While the storage fails in passing, a
/// new file is written from the start, under another name in the same folder, and then takes the
/// name `path`: what a failed write or sync has left is not built upon. A regular file that is
/// there is replaced.
///
/// write: may be called several times.
void write_anew(FileSystem& files, const std::string& path,
                const std::function<void(OutputFile&)>& write);

/// The folder that `path` lies in; "." for a bare name.
[[nodiscard]] std::string parent_folder(std::string_view path);

/// Folders that this process created. The destructor removes those that are empty, newest first,
/// unless keep() was called, so that a rejected start leaves no folder behind.
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
