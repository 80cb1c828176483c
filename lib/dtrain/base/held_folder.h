// Holds a folder open and notices when its path leads to another one.
#pragma once

#include <memory>
#include <string>

#include "dtrain/base/descriptor.h"
#include "dtrain/base/file_system.h"

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

/// The machine's own file systems; every change is refused as by HeldFolder::check.
class HeldDisk final : public FileSystem {
 public:
  /// `folder` must outlive this.
  HeldDisk(const HeldFolder& folder, ErrorKind kind) : folder_(folder), disk_(kind) {}

  [[nodiscard]] std::unique_ptr<OutputFile> create_file(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove_file(const std::string& path) override;
  void remove_folder(const std::string& path) override;

 private:
  const HeldFolder& folder_;
  Disk disk_;
};

}  // namespace dtrain::base
