#include "dtrain/base/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/storage_error.h"

namespace dtrain::base {

MappedFile MappedFile::open(const std::string& path, const FileRole& role) {
  const InputFile file = InputFile::open(path, role);
  const auto size = static_cast<std::size_t>(file.size());
  void* memory = nullptr;
  const int result = with_patience(path, [&] {
    memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    return memory == MAP_FAILED && errno != ENODEV ? -1 : 0;
  });
  if (result != 0 || memory == MAP_FAILED) {
    const int error = errno;
    const std::string text = fmt::format("{} '{}' cannot be mapped ({}); {}", role.what, path,
                                         std::strerror(error), role.advice);
    if (error == ENODEV) throw Error(role.kind, text);  // its file system never maps files
    fail_on_storage(role.kind, error, text);
  }
  return {path, {static_cast<const std::byte*>(memory), size}, role};
}

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes, const FileRole& role)
    : path_(std::move(path)),
      bytes_(bytes),
      guard_(
          bytes, role.kind,
          fmt::format("{} '{}' cannot be read any more: it was shortened while it was in use, or "
                      "its disk failed; replace files by renaming new ones over them",
                      role.what, path_)) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  return *this;
}

MappedFile::~MappedFile() {
  // The pages come from mmap and are const only by our own promise, so the cast is safe.
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace dtrain::base
