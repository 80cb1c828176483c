#include "dtrain/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dtrain::base {

InputFile InputFile::open(const std::string& path, const FileRole& role) {
  InputFile file(path, role);
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  file.descriptor_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.descriptor_) {
    file.refuse(errno == ENOENT ? std::string("does not exist")
                                : fmt::format("cannot be opened ({})", std::strerror(errno)));
  }
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) {
    file.refuse(fmt::format("cannot be examined ({})", std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) file.refuse("is a directory");
  if (!S_ISREG(status.st_mode)) file.refuse("is not a regular file");
  if (status.st_size == 0) file.refuse("is empty");
  file.size_ = status.st_size;
  return file;
}

void InputFile::read(std::int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t count = ::pread(descriptor(), to.data(), to.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail(role_.kind, "{} '{}' cannot be read at byte {} ({}); check its disk or network",
           role_.what, path_, offset, std::strerror(errno));
    }
    if (count == 0) {
      fail(role_.kind,
           "{} '{}' ends at byte {}, and had {} bytes when it was opened; restore it, and replace "
           "files by renaming new ones over them",
           role_.what, path_, offset, size_);
    }
    offset += count;
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

void InputFile::refuse(std::string_view found) const {
  fail(role_.kind, "{} '{}' {}; {}", role_.what, path_, found, role_.advice);
}

}  // namespace dtrain::base
