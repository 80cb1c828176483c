#include "dtrain/base/atomic_file.h"

#include <unistd.h>

#include <utility>

namespace dtrain::base {

AtomicFile::AtomicFile(std::string path, ErrorKind kind) : disk_(kind), path_(std::move(path)) {
  // The number tells apart several writers of one process.
  for (int number = 0; temporary_.empty() || ::access(temporary_.c_str(), F_OK) == 0; ++number) {
    temporary_ = fmt::format("{}{}-{}", temporary_prefix(path_), ::getpid(), number);
  }
  file_ = disk_.create_file(temporary_);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  file_->sync();
  file_->close();
  disk_.rename(temporary_, path_);
  temporary_.clear();
  disk_.sync_folder(parent_folder(path_));
}

std::string temporary_prefix(const std::string& path) { return path + ".tmp-"; }

}  // namespace dtrain::base
