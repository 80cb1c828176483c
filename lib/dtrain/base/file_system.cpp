#include "dtrain/base/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "dtrain/base/descriptor.h"

namespace dtrain::base {
namespace {

[[noreturn]] void fail_with_errno(ErrorKind kind, const std::string& path, const char* action) {
  if (errno == EFBIG) {
    fail(kind,
         "'{}' cannot be {} ({}): raise the limit on file sizes (ulimit -f), or write to a "
         "file system that takes larger files",
         path, action, std::strerror(errno));
  }
  const char* reason = std::strerror(errno);
  fail(kind, "'{}' cannot be {} ({}); check that its folder exists, is writable and has room", path,
       action, reason);
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

}  // namespace

std::unique_ptr<OutputFile> Disk::create_file(const std::string& path) {
  return std::make_unique<DiskFile>(path, kind_);
}

void Disk::make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail_with_errno(kind_, path, "created");
}

void Disk::sync_folder(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail_with_errno(kind_, path, "opened");
  // Some file systems cannot sync a folder and say EINVAL; there is nothing more to do there.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail_with_errno(kind_, path, "made durable");
  if (::close(folder.release()) != 0) fail_with_errno(kind_, path, "closed");
}

void Disk::rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_with_errno(kind_, to, "given its name");
}

void Disk::remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_with_errno(kind_, path, "removed");
}

void Disk::remove_folder(const std::string& path) {
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) fail_with_errno(kind_, path, "removed");
}

std::string parent_folder(std::string_view path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

}  // namespace dtrain::base
