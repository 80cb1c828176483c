#include "dtrain/base/io/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"

namespace dtrain::base {
namespace {

/// Advice on `error`; empty if there is none.
const char* advice_on(int error) {
  switch (error) {
    case EFBIG:
      return ": raise the limit on file sizes (ulimit -f), or write to a file system that takes "
             "larger files";
    case ENOSPC:
    case EDQUOT:
      return ": make room there";
    case EACCES:
    case EPERM:
    case EROFS:
      return ": make its folder writable";
    case ENOENT:
    case ENOTDIR:
      return ": its folder is missing";
    default:
      return "";
  }
}

[[noreturn]] void fail_with_errno(ErrorKind kind, const std::string& path, const char* action) {
  const int error = errno;
  fail_on_storage(kind, error,
                  fmt::format("'{}' cannot be {} ({}){}", path, action, std::strerror(error),
                              advice_on(error)));
}

class DiskFile final : public OutputFile {
 public:
  DiskFile(std::string path, ErrorKind kind)
      : path_(std::move(path)),
        kind_(kind),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (!file_) fail_with_errno(kind_, path_, "created");
  }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        fail_with_errno(kind_, path_, "written");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void sync() override {
    if (::fsync(file_.get()) != 0) fail_with_errno(kind_, path_, "written to disk");
  }

  void close() override {
    if (::close(file_.release()) != 0) fail_with_errno(kind_, path_, "closed");
  }

 private:
  std::string path_;
  ErrorKind kind_;
  Descriptor file_;
};

std::string temporary_prefix(const std::string& path) { return path + ".tmp-"; }

// Matches our suffixes, "12-0" or "18ea4b45-12" within a job; other programs' names have words
// there.
bool is_number(std::string_view text) {
  const auto dash = text.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < text.size() &&
         text.substr(0, dash).find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         text.substr(dash + 1).find_first_not_of("0123456789") == std::string_view::npos;
}

// Renaming over a device or FIFO would remove it for all its users.
void check_replaceable(const std::string& path, ErrorKind kind) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  fail(kind, "'{}' is {}, not a regular file, and is not replaced; name another file", path,
       S_ISDIR(status.st_mode) ? "a folder" : "a device, FIFO or socket");
}

}  // namespace

std::unique_ptr<OutputFile> Disk::create_file(const std::string& path) {
  check_folder();
  return std::make_unique<DiskFile>(path, kind_);
}

void Disk::make_folder(const std::string& path) {
  check_folder();
  const auto make = [&] { return ::mkdir(path.c_str(), 0777) == 0 || errno == EEXIST ? 0 : -1; };
  if (retry_transient(path, make) != 0) fail_with_errno(kind_, path, "created");
}

void Disk::sync_folder(const std::string& path) {
  check_folder();
  Descriptor folder(retry_transient(
      path, [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!folder) fail_with_errno(kind_, path, "opened");
  // EINVAL: the file system cannot sync folders.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail_with_errno(kind_, path, "synced to disk");
  if (::close(folder.release()) != 0) fail_with_errno(kind_, path, "closed");
}

void Disk::rename(const std::string& from, const std::string& to) {
  check_folder();
  bool is_repeated = false;
  const auto give_name = [&] {
    if (std::rename(from.c_str(), to.c_str()) == 0) return 0;
    // A file server may have renamed it although its answer was lost.
    const bool is_done = is_repeated && errno == ENOENT && ::access(to.c_str(), F_OK) == 0;
    is_repeated = true;
    return is_done ? 0 : -1;
  };
  if (retry_transient(to, give_name) != 0) fail_with_errno(kind_, to, "renamed into place");
}

void Disk::remove_file(const std::string& path) {
  check_folder();
  const auto remove = [&] { return ::unlink(path.c_str()) == 0 || errno == ENOENT ? 0 : -1; };
  if (retry_transient(path, remove) != 0) fail_with_errno(kind_, path, "removed");
}

void Disk::remove_folder(const std::string& path) {
  check_folder();
  const auto remove = [&] { return ::rmdir(path.c_str()) == 0 || errno == ENOENT ? 0 : -1; };
  if (retry_transient(path, remove) != 0) fail_with_errno(kind_, path, "removed");
}

namespace {

// Ignores errors: the next file replaces a leftover or has another name.
void try_to_remove(FileSystem& files, const std::string& path) {
  try {
    files.remove_file(path);
  } catch (const Error&) {
  }
}

void write_whole(FileSystem& files, const std::string& path,
                 const std::function<void(OutputFile&)>& write) {
  // A leftover of an earlier attempt, which could not be removed when the storage failed.
  if (std::filesystem::is_regular_file(link_status(path))) files.remove_file(path);
  const auto file = files.create_file(path);
  try {
    write(*file);
    file->sync();
    file->close();
  } catch (const Error&) {
    try_to_remove(files, path);  // the next one may need its space
    throw;
  }
}

}  // namespace

void write_with_retries(FileSystem& files, const std::string& path,
                        const std::function<void(OutputFile&)>& write) {
  retry_task([&](int number) {
    if (number == 0) return write_whole(files, path, write);
    const auto slash = path.rfind('/') + 1;
    const std::string other =
        fmt::format("{}again{}-{}", path.substr(0, slash), number, path.substr(slash));
    try {
      write_whole(files, other, write);
      files.rename(other, path);
    } catch (const Error&) {
      try_to_remove(files, other);
      throw;
    }
  });
}

std::string parent_folder(std::string_view path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

HeldFolder::HeldFolder(std::string path, ErrorKind kind)
    : path_(std::move(path)), kind_(kind), folder_(retry_transient(path_, [&] {
        return ::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
      })) {
  if (folder_) return;
  const int error = errno;
  fail_on_storage(kind_, error,
                  fmt::format("folder '{}' cannot be opened ({})", path_, std::strerror(error)));
}

void HeldFolder::check() const {
  struct stat own {};
  struct stat there {};
  // An inode number is not reused while the folder is open.
  if (retry_transient(path_, [&] { return ::fstat(folder_.get(), &own); }) != 0) {
    const int error = errno;
    fail_on_storage(
        kind_, error,
        fmt::format("folder '{}' cannot be examined ({})", path_, std::strerror(error)));
  }
  if (::stat(path_.c_str(), &there) != 0) {
    // A disk that does not answer has not moved the folder; later writes fail by themselves.
    if (errno != ENOENT && errno != ENOTDIR) return;
    fail(kind_,
         "folder '{}' was moved or removed while this job ran ({}); nothing more is written; if it "
         "was moved, resume with --run-dir NEWNAME --resume auto",
         path_, std::strerror(errno));
  }
  if (own.st_dev == there.st_dev && own.st_ino == there.st_ino) return;
  fail(kind_,
       "folder '{}' was moved while this job ran, and another folder has its name now; nothing "
       "more is written",
       path_);
}

NewFolders::~NewFolders() {
  while (!made_.empty() && ::rmdir(made_.back().c_str()) == 0) made_.pop_back();
}

bool NewFolders::add(const std::string& path, std::error_code& error) {
  namespace fs = std::filesystem;
  std::vector<fs::path> missing;
  fs::path each = fs::absolute(path, error);
  if (error) return false;
  if (!each.has_filename()) each = each.parent_path();  // "runs/a/"
  for (std::error_code unseen; !fs::exists(each, unseen) && each.has_relative_path();
       each = each.parent_path()) {
    missing.push_back(each);
  }
  bool is_new = false;
  std::ranges::reverse(missing);
  for (const fs::path& folder : missing) {
    (void)retry_transient(folder.string(), [&] {
      is_new = fs::create_directory(folder, error);
      errno = error.value();
      return error ? -1 : 0;
    });
    if (error) return false;
    if (is_new) made_.push_back(folder.string());
  }
  return is_new;
}

AtomicFile::AtomicFile(std::string path, ErrorKind kind)
    : disk_(kind), kind_(kind), path_(std::move(path)) {
  check_replaceable(path_, kind);
  // The number distinguishes several writers of one process.
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
  std::error_code error;  // nothing can be removed from an unreadable folder
  for (const std::string& name : names_in(folder, error)) {
    if (!name.starts_with(prefix) || !is_number(name.substr(prefix.size()))) continue;
    const std::string temporary = fmt::format("{}/{}", folder, name);
    if (fs::is_regular_file(link_status(temporary))) Disk(kind).remove_file(temporary);
  }
}

}  // namespace dtrain::base
