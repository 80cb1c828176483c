#include "dtrain/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace dtrain::base {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile MappedFile::open(const std::string& path, const FileRole& role) {
  const auto refuse = [&](std::string_view found) {
    fail(role.kind, "{} '{}' {}; {}", role.what, path, found, role.advice);
  };
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    refuse(errno == ENOENT ? std::string("does not exist")
                           : fmt::format("cannot be opened ({})", std::strerror(errno)));
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    refuse(fmt::format("cannot be examined ({})", std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) refuse("is a directory");
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file");
  if (status.st_size == 0) refuse("is empty");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) refuse(fmt::format("cannot be mapped ({})", std::strerror(errno)));
  return {path, {static_cast<const std::byte*>(memory), size}};
}

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  // mmap gave the pages, so that casting const away is undoing our own promise.
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace dtrain::base
