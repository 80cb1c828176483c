#include "dtrain/param/disk_memory.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::param {
namespace {

constexpr std::int64_t kPage = 4096;

// what: the operation that failed, and the advice.
[[noreturn]] void fail_on_disk(const std::string& folder, std::string_view what) {
  const int error = errno;
  base::fail_on_storage(
      base::ErrorKind::usage, error,
      fmt::format("--offload disk:{}: {}: {}", folder, what, std::strerror(error)));
}

constexpr std::string_view kNotWritable = "cannot be written; choose a writable folder";

int open_unnamed(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string path = folder + "/dtrain-offload-XXXXXX";  // for file systems without O_TMPFILE
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(path.c_str());
  return named;
}

std::int64_t free_bytes(const std::string& folder) {
  struct statvfs info {};
  if (base::retry_transient(folder, [&] { return ::statvfs(folder.c_str(), &info); }) != 0) {
    fail_on_disk(folder, kNotWritable);
  }
  return static_cast<std::int64_t>(info.f_bavail * info.f_frsize);
}

}  // namespace

void DiskMemory::check_free_space(const std::string& folder, std::int64_t bytes) {
  // The first launch had the room, so after a restart others are using it and may free it.
  const int shortage = base::is_restart_of_process() ? ENOSPC : 0;
  base::StorageRetry retry(folder);
  std::int64_t free = free_bytes(folder);
  while (free < bytes && retry.should_retry(shortage)) free = free_bytes(folder);
  if (free >= bytes) return;
  base::fail_on_storage(
      base::ErrorKind::usage, shortage,
      fmt::format("--offload disk:{}: this rank needs {} bytes, but {} are free; choose another "
                  "folder, more ranks or a smaller model",
                  folder, bytes, free));
}

DiskMemory::File::File(base::Descriptor opened, std::span<char> mapped, const std::string& folder)
    : descriptor(std::move(opened)),
      data(mapped.data()),
      bytes(std::ssize(mapped)),
      guard(std::as_bytes(mapped), base::ErrorKind::checkpoint,
            fmt::format("--offload disk:{}: the offload file is no longer accessible: it was "
                        "truncated, or the disk is full or has failed; choose another folder",
                        folder)) {}

DiskMemory::File::~File() { ::munmap(data, static_cast<std::size_t>(bytes)); }

at::Tensor DiskMemory::allocate(std::int64_t bytes) {
  base::Descriptor descriptor(
      base::retry_transient(folder_, [&] { return open_unnamed(folder_); }));
  if (!descriptor) fail_on_disk(folder_, kNotWritable);
  // Reserves the blocks now, so that a run cannot fail later because other ranks took the space.
  const auto reserve = [&] {
    errno = ::posix_fallocate(descriptor.get(), 0, bytes);
    return errno == 0 ? 0 : -1;
  };
  if (base::retry_transient(folder_, reserve) != 0) {
    fail_on_disk(folder_, fmt::format("cannot reserve {} bytes; choose another folder, more ranks "
                                      "or a smaller model",
                                      bytes));
  }
  void* data = nullptr;
  const auto map = [&] {
    data = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                  descriptor.get(), 0);
    return data == MAP_FAILED && errno != ENODEV ? -1 : 0;
  };
  if (base::retry_transient(folder_, map) != 0) {
    fail_on_disk(folder_, fmt::format("cannot map {} bytes", bytes));
  }
  if (data == MAP_FAILED) {
    base::fail(base::ErrorKind::usage,
               "--offload disk:{}: its file system does not support mmap; choose another folder",
               folder_);
  }
  const auto file = std::make_shared<const File>(
      std::move(descriptor), std::span(static_cast<char*>(data), static_cast<std::size_t>(bytes)),
      folder_);
  files_.push_back(file);
  return at::from_blob(
      data, {bytes}, [file](void*) {}, at::TensorOptions().dtype(at::kByte));
}

// The whole pages inside the tensor; a page at its edge may be shared with a neighbour.
DiskMemory::Pages DiskMemory::pages_of(const at::Tensor& part) const {
  const auto* begin = static_cast<const char*>(part.const_data_ptr());
  const auto size = static_cast<std::int64_t>(part.nbytes());
  const auto file = std::find_if(files_.begin(), files_.end(), [&](const auto& candidate) {
    return candidate->data <= begin && begin + size <= candidate->data + candidate->bytes;
  });
  DTRAIN_CHECK(file != files_.end() && part.is_contiguous());
  const std::int64_t first = begin - (*file)->data;
  const std::int64_t from = (first + kPage - 1) / kPage * kPage;
  return {**file, from, std::max<std::int64_t>((first + size) / kPage * kPage - from, 0)};
}

// A failed write is not retried, because the kernel may have dropped the values; a restart recovers.
void DiskMemory::write_back(const Pages& pages, unsigned flags) const {
  while (::sync_file_range(pages.file.descriptor.get(), pages.begin, pages.size, flags) != 0) {
    if (errno == EINTR) continue;
    throw base::StorageError(
        fmt::format("--offload disk:{}: writing failed: {}", folder_, std::strerror(errno)));
  }
}

Fetched DiskMemory::fetch(const at::Tensor& part) {
  const Pages pages = pages_of(part);
  if (pages.size > 0) {
    ::madvise(pages.file.data + pages.begin, static_cast<std::size_t>(pages.size), MADV_WILLNEED);
  }
  return {.values = part};
}

void DiskMemory::store(const at::Tensor&, const at::Tensor& part) {
  const Pages pages = pages_of(part);
  if (pages.size == 0) return;
  write_back(pages, SYNC_FILE_RANGE_WRITE);
}

void DiskMemory::release(const at::Tensor& part) {
  const Pages pages = pages_of(part);
  if (pages.size == 0) return;
  // Unmaps the pages first, so that all writes are in the page cache.
  ::madvise(pages.file.data + pages.begin, static_cast<std::size_t>(pages.size), MADV_DONTNEED);
  write_back(pages,
             SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  ::posix_fadvise(pages.file.descriptor.get(), pages.begin, pages.size, POSIX_FADV_DONTNEED);
}

}  // namespace dtrain::param
