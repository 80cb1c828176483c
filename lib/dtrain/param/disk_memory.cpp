#include "dtrain/param/disk_memory.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "dtrain/base/check.h"

namespace dtrain::param {
namespace {

// Tensors begin at pages of their own, so that giving one's memory back touches no other.
constexpr std::int64_t kPage = 4096;

std::string reason() { return std::generic_category().message(errno); }

int open_unnamed(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string path = folder + "/dtrain-offload-XXXXXX";  // file systems without unnamed files
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(path.c_str());
  return named;
}

void check_room(const std::string& folder, std::int64_t bytes) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    base::fail(base::ErrorKind::usage, "--offload disk:{}: {}; name a folder that can be written",
               folder, reason());
  }
  const auto free = static_cast<std::int64_t>(info.f_bavail * info.f_frsize);
  if (free < bytes) {
    base::fail(base::ErrorKind::usage,
               "--offload disk:{}: this rank needs {} bytes there, {} are free; choose another "
               "folder, more ranks or a smaller model",
               folder, bytes, free);
  }
}

}  // namespace

DiskMemory::DiskMemory(const std::string& folder, std::int64_t bytes)
    : folder_(folder), bytes_(rounded(bytes)) {
  check_room(folder, bytes_);
  file_ = open_unnamed(folder);
  if (file_ < 0) {
    base::fail(base::ErrorKind::usage, "--offload disk:{}: {}; name a folder that can be written",
               folder, reason());
  }
  // Other ranks may want the same room: reserved now, it cannot be missing in the middle of a run.
  if (const int error = ::posix_fallocate(file_, 0, bytes_); error != 0) {
    ::close(file_);
    base::fail(base::ErrorKind::usage,
               "--offload disk:{}: cannot reserve {} bytes: {}; choose another folder, more ranks "
               "or a smaller model",
               folder, bytes_, std::generic_category().message(error));
  }
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED,
                      file_, 0);
  if (data == MAP_FAILED) {
    const std::string why = reason();
    ::close(file_);
    base::fail(base::ErrorKind::memory, "--offload disk:{}: cannot map {} bytes: {}", folder,
               bytes_, why);
  }
  data_ = static_cast<char*>(data);
}

DiskMemory::~DiskMemory() {
  ::munmap(data_, static_cast<std::size_t>(bytes_));
  ::close(file_);
}

std::int64_t DiskMemory::rounded(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

at::Tensor DiskMemory::allocate(std::int64_t bytes) {
  DTRAIN_CHECK(used_ + rounded(bytes) <= bytes_, "{} bytes of {} are used, {} more are asked for",
               used_, bytes_, bytes);
  char* begin = data_ + used_;
  used_ += rounded(bytes);
  return at::from_blob(begin, {bytes}, at::TensorOptions().dtype(at::kByte));
}

// Whole pages inside the tensor: an edge page may belong to a neighbour's values too.
DiskMemory::Span DiskMemory::pages_of(const at::Tensor& part) const {
  const auto* begin = static_cast<const char*>(part.const_data_ptr());
  const std::int64_t first = begin - data_;
  const std::int64_t end = first + static_cast<std::int64_t>(part.nbytes());
  DTRAIN_CHECK(first >= 0 && end <= bytes_ && part.is_contiguous());
  const std::int64_t from = (first + kPage - 1) / kPage * kPage;
  return {from, std::max<std::int64_t>(end / kPage * kPage - from, 0)};
}

void DiskMemory::read_ahead(const at::Tensor& part) const {
  const Span pages = pages_of(part);
  if (pages.size > 0) {
    ::madvise(data_ + pages.begin, static_cast<std::size_t>(pages.size), MADV_WILLNEED);
  }
}

void DiskMemory::write_back(const at::Tensor& part) const {
  const Span pages = pages_of(part);
  if (pages.size > 0) ::sync_file_range(file_, pages.begin, pages.size, SYNC_FILE_RANGE_WRITE);
}

void DiskMemory::release(const at::Tensor& part) const {
  const Span pages = pages_of(part);
  if (pages.size == 0) return;
  // Dirty bits of the mapping must reach the cache before it is written and dropped.
  ::msync(data_ + pages.begin, static_cast<std::size_t>(pages.size), MS_ASYNC);
  ::madvise(data_ + pages.begin, static_cast<std::size_t>(pages.size), MADV_DONTNEED);
  const int written =
      ::sync_file_range(file_, pages.begin, pages.size,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER);
  if (written != 0 && (errno == EIO || errno == ENOSPC)) {
    base::fail(base::ErrorKind::checkpoint, "--offload disk:{}: writing failed: {}", folder_,
               reason());
  }
  ::posix_fadvise(file_, pages.begin, pages.size, POSIX_FADV_DONTNEED);
}

}  // namespace dtrain::param
