#include "dtrain/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "dtrain/base/descriptor.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"

namespace dtrain::base {
namespace {

std::string temporary_prefix(const std::string& path) { return path + ".tmp-"; }

// "12-0", or "18ea4b45-12" of a job; a name that somebody else gave has words behind the prefix.
bool is_number(std::string_view text) {
  const auto dash = text.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < text.size() &&
         text.substr(0, dash).find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         text.substr(dash + 1).find_first_not_of("0123456789") == std::string_view::npos;
}

// Renaming over a device or a FIFO would take it away from everybody else.
void check_replaceable(const std::string& path, ErrorKind kind) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  fail(kind, "'{}' is {}, not a regular file, and is not replaced; name another file", path,
       S_ISDIR(status.st_mode) ? "a folder" : "a device, FIFO or socket");
}

}  // namespace

AtomicFile::AtomicFile(std::string path, ErrorKind kind)
    : disk_(kind), kind_(kind), path_(std::move(path)) {
  check_replaceable(path_, kind);
  // The number tells apart several writers of one process.
  int number = 0;
  retry_task([&](int) {
    do {
      temporary_ = fmt::format("{}{}-{}", temporary_prefix(path_), ::getpid(), number++);
    } while (::access(temporary_.c_str(), F_OK) == 0);
    create();
  });
}

void AtomicFile::create() {
  const auto as_path = [this](std::string message) {
    const auto place = message.find(temporary_);
    if (place != message.npos) message.replace(place, temporary_.size(), path_);
    return message;
  };
  try {
    file_ = disk_.create_file(temporary_);
  } catch (const StorageError& error) {
    throw StorageError(as_path(error.what()), error.reason());
  } catch (const Error& error) {
    throw Error(error.kind(), as_path(error.what()));
  }
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::rewrite(std::int64_t offset, std::span<const std::byte> bytes) {
  const Descriptor file(::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC));
  const auto size = static_cast<ssize_t>(bytes.size());
  if (!file || ::pwrite(file.get(), bytes.data(), bytes.size(), offset) != size) {
    const int error = errno;
    fail_on_storage(kind_, error,
                    fmt::format("'{}' cannot be written: {}", path_, std::strerror(error)));
  }
}

void AtomicFile::commit() {
  file_->sync();
  file_->close();
  disk_.rename(temporary_, path_);
  temporary_.clear();
  disk_.sync_folder(parent_folder(path_));
}

void write_atomically(const std::string& path, ErrorKind kind, std::string_view text) {
  retry_task([&](int) {
    AtomicFile file(path, kind);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  });
}

void remove_temporaries_of(const std::string& path, ErrorKind kind) {
  namespace fs = std::filesystem;
  const std::string prefix = temporary_prefix(fs::path(path).filename().string());
  const std::string folder = parent_folder(path);
  std::error_code error;  // a folder that cannot be read has nothing that could be removed
  for (const std::string& name : names_in(folder, error)) {
    if (!name.starts_with(prefix) || !is_number(name.substr(prefix.size()))) continue;
    const std::string temporary = fmt::format("{}/{}", folder, name);
    if (fs::is_regular_file(link_status(temporary))) Disk(kind).remove_file(temporary);
  }
}

}  // namespace dtrain::base
