#include "dtrain/comm/internal/host/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "dtrain/base/error.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

std::int64_t page_bytes() {
  static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

std::int64_t in_pages(std::int64_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

base::Descriptor make_file(std::int64_t max_bytes) {
  const std::int64_t machine = ::sysconf(_SC_PHYS_PAGES) * page_bytes();
  // Round down to whole pages: a byte above the system's file size limit ends the process.
  const std::int64_t bytes = std::min(machine, max_bytes) / page_bytes() * page_bytes();
  base::Descriptor file(::memfd_create("dtrain", MFD_CLOEXEC));
  if (file.get() < 0 || ::ftruncate(file.get(), bytes) != 0) {
    base::fail(ErrorKind::memory, "cannot create shared memory (memfd): {}", std::strerror(errno));
  }
  return file;
}

// Released pages that no allocation fits may take up to a fourth of the peak.
constexpr std::int64_t kSlack = 4;

int change_pages(int descriptor, int mode, std::int64_t offset, std::int64_t bytes) noexcept {
  while (::fallocate(descriptor, mode, offset, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Mapping::Mapping(const base::Descriptor& file) {
  struct stat status {};
  ::fstat(file.get(), &status);
  bytes_ = status.st_size;
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) {
    base::fail(
        ErrorKind::memory,
        "cannot map {} bytes of shared memory: {}; raise the limit on address space (ulimit -v)",
        bytes_, std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(data);
}

Mapping::~Mapping() { ::munmap(data_, static_cast<std::size_t>(bytes_)); }

std::optional<std::int64_t> FreeRanges::take(std::int64_t size) {
  auto best = ranges_.end();
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
    const bool fits = range->second >= size;
    if (fits && (best == ranges_.end() || range->second < best->second)) best = range;
  }
  if (best == ranges_.end()) return std::nullopt;
  const auto [begin, room] = *best;
  ranges_.erase(best);
  if (room > size) ranges_.emplace(begin + size, room - size);
  return begin;
}

FreeRanges::Range FreeRanges::take_any() {
  const auto last = std::prev(ranges_.end());
  const Range range{last->first, last->second};
  ranges_.erase(last);
  return range;
}

void FreeRanges::give_back(std::int64_t begin, std::int64_t size) {
  const auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      size += previous->second;
      ranges_.erase(previous);
    }
  }
  if (next != ranges_.end() && next->first == begin + size) {
    size += next->second;
    ranges_.erase(next);
  }
  ranges_.emplace(begin, size);
}

Segment::Segment(std::int64_t max_bytes, Count count)
    : file_(make_file(max_bytes)),
      mapping_(file_),
      count_(std::move(count)),
      free_(mapping_.bytes()) {}

std::shared_ptr<std::byte> Segment::allocate(std::int64_t bytes) {
  const Extent extent = reserve(bytes, bytes);
  const auto free = [segment = shared_from_this(), extent](std::byte*) {
    segment->release(extent);
  };
  return {mapping_.data() + extent.offset, free};
}

Segment::Extent Segment::reserve(std::int64_t bytes, std::int64_t backed) {
  Extent extent{.bytes = in_pages(bytes), .backed = in_pages(backed)};
  const std::lock_guard lock(mutex_);
  const int error = take_kept(extent) ? 0 : take_new(extent);
  if (error != 0) {
    base::fail(
        ErrorKind::memory,
        "out of memory: cannot allocate {} bytes of shared memory ({} of {} in use): {}; use "
        "--recompute level, a smaller --microbatch, a smaller model, or sharding over more ranks",
        bytes, in_use_, mapping_.bytes(), std::strerror(error));
  }
  in_use_ += extent.backed;
  peak_in_use_ = std::max(peak_in_use_, in_use_);
  drop_kept(peak_in_use_ - in_use_ + peak_in_use_ / kSlack);
  if (count_) count_(extent.backed);
  return extent;
}

bool Segment::take_kept(Extent& extent) {
  const auto offset = extent.bytes == extent.backed ? kept_.take(extent.bytes) : std::nullopt;
  if (!offset) return false;
  extent.offset = *offset;
  kept_bytes_ -= extent.bytes;
  std::memset(mapping_.data() + extent.offset, 0, static_cast<std::size_t>(extent.bytes));
  return true;
}

int Segment::take_new(Extent& extent) {
  auto offset = free_.take(extent.bytes);
  if (!offset) {
    drop_kept(0);
    offset = free_.take(extent.bytes);
  }
  if (!offset) return ENOSPC;
  extent.offset = *offset;
  // Reserve the pages now, when the system can refuse: a failed page fault would end the process.
  int error = change_pages(file_.get(), 0, extent.offset, extent.backed);
  if (error != 0 && kept_bytes_ > 0) {
    drop_kept(0);
    error = change_pages(file_.get(), 0, extent.offset, extent.backed);
  }
  if (error != 0) free_.give_back(extent.offset, extent.bytes);
  return error;
}

void Segment::release(const Extent& extent) noexcept {
  const std::lock_guard lock(mutex_);
  if (extent.bytes == extent.backed) {
    kept_.give_back(extent.offset, extent.bytes);
    kept_bytes_ += extent.bytes;
  } else {
    drop(extent.offset, extent.bytes);
  }
  in_use_ -= extent.backed;
  if (count_) count_(-extent.backed);
}

void Segment::drop(std::int64_t offset, std::int64_t bytes) noexcept {
  // Punching a hole returns the pages to the system and zeroes the range.
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (change_pages(file_.get(), kPunch, offset, bytes) != 0) {
    std::memset(mapping_.data() + offset, 0, static_cast<std::size_t>(bytes));
  }
  free_.give_back(offset, bytes);
}

void Segment::drop_kept(std::int64_t bytes) noexcept {
  while (kept_bytes_ > bytes) {
    const FreeRanges::Range range = kept_.take_any();
    // Drop only the necessary part of the last range.
    const std::int64_t kept =
        std::min(range.size, std::max<std::int64_t>(0, bytes - (kept_bytes_ - range.size)));
    if (kept > 0) kept_.give_back(range.begin, kept);
    drop(range.begin + kept, range.size - kept);
    kept_bytes_ -= range.size - kept;
  }
}

}  // namespace dtrain::comm
