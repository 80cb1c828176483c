#include "dtrain/base/atomic_file.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace dtrain::base {
namespace {

std::string temporary_prefix(const std::string& path) { return path + ".tmp-"; }

}  // namespace

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

void remove_temporaries_of(const std::string& path, ErrorKind kind) {
  const std::string prefix = temporary_prefix(std::filesystem::path(path).filename().string());
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent_folder(path), error)) {
    if (entry.path().filename().string().starts_with(prefix))
      Disk(kind).remove_file(entry.path().string());
  }
}

}  // namespace dtrain::base
