#include "dtrain/base/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/io/storage_error.h"

namespace dtrain::base {

namespace {

// Without O_NONBLOCK, opening a FIFO would wait for a writer.
int open_to_read(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

}  // namespace

InputFile InputFile::open(const std::string& path, const FileRole& role) {
  InputFile file(path, role);
  struct stat status {};
  const int result = retry_transient(path, [&] {
    file.descriptor_ = Descriptor(open_to_read(path));
    return file.descriptor_ ? ::fstat(file.descriptor(), &status) : -1;
  });
  if (result != 0) {
    const int error = errno;
    const bool is_missing = error == ENOENT || error == ENOTDIR;
    file.refuse(error == ENOENT ? std::string("does not exist")
                                : fmt::format("cannot be opened ({})", std::strerror(error)),
                is_missing ? 0 : error);
  }
  if (S_ISDIR(status.st_mode)) file.refuse("is a directory");
  if (!S_ISREG(status.st_mode)) file.refuse("is not a regular file");
  if (status.st_size == 0) file.refuse("is empty");
  file.size_ = status.st_size;
  file.modified_ = status.st_mtim;
  return file;
}

// A stale descriptor stays stale: the file is opened again, as the same descriptor.
void InputFile::open_again() const {
  const Descriptor file(open_to_read(path_));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return;
  const bool is_same = status.st_size == size_ && status.st_mtim.tv_sec == modified_.tv_sec &&
                       status.st_mtim.tv_nsec == modified_.tv_nsec;
  if (!is_same) refuse("was replaced while it was in use");
  (void)::dup3(file.get(), descriptor(), O_CLOEXEC);
}

void InputFile::read(std::int64_t offset, std::span<std::byte> to) const {
  StorageRetry retry(path_);
  while (!to.empty()) {
    const ssize_t count = ::pread(descriptor(), to.data(), to.size(), offset);
    if (count < 0 && retry.should_retry(errno)) {
      if (errno != EINTR) open_again();
      continue;
    }
    if (count < 0) {
      const int error = errno;
      fail_on_storage(role_.kind, error,
                      fmt::format("{} '{}' cannot be read at byte {} ({}); check its disk or "
                                  "network",
                                  role_.what, path_, offset, std::strerror(error)));
    }
    if (count == 0) {
      struct stat status {};
      ::fstat(descriptor(), &status);
      fail(role_.kind,
           "{} '{}' was shortened while it was in use: it ends at byte {}, and had {} bytes when "
           "it was opened; restore it; to replace a file in use, rename a new one over it",
           role_.what, path_, status.st_size, size_);
    }
    offset += count;
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

// error: of the call that failed; 0: the file itself is wrong.
void InputFile::refuse(std::string_view found, int error) const {
  const std::string text =
      fmt::format("{} '{}' {}; {}", role_.what, path_, found,
                  is_transient(error) ? "check the storage, and start again" : role_.advice);
  if (error == 0) throw Error(role_.kind, text);
  fail_on_storage(role_.kind, error, text);
}

std::string content_of(const std::string& path, const FileRole& role) {
  struct stat status {};
  const int result = retry_transient(path, [&] { return ::stat(path.c_str(), &status); });
  if (result == 0 && S_ISREG(status.st_mode) && status.st_size == 0) return {};
  return content_of(InputFile::open(path, role));
}

std::string content_of(const InputFile& file) {
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace dtrain::base
