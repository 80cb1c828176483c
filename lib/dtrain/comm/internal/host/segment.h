// A rank's shared-memory segment, which the other processes of its host map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "dtrain/base/io/descriptor.h"

namespace dtrain::comm {

/// A shared memory mapping of a file.
class Mapping {
 public:
  /// Maps the whole file, which may be closed afterwards.
  ///
  /// Throws: Error{memory} naming the size and the reason.
  explicit Mapping(const base::Descriptor& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Best-fit allocator for ranges of integers. Threads: one at a time.
class FreeRanges {
 public:
  FreeRanges() = default;
  explicit FreeRanges(std::int64_t size) : ranges_{{0, size}} {}

  /// Takes `size` numbers from the smallest free range that fits; empty if none does.
  std::optional<std::int64_t> take(std::int64_t size);
  /// Takes the last free range as a whole. Requires: there is one.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
  };
  Range take_any();
  void give_back(std::int64_t begin, std::int64_t size);

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // size by begin; no two are adjacent
};

/// Allocates whole pages of an anonymous file (memfd). Released memory keeps its pages for the next
/// allocation, so that processes need not fault in new ones. Allocated pages exceed the peak use by
/// at most a fourth. The file lives until the last process closes and unmaps it.
///
/// Threads: any.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  /// Receives the bytes by which the memory in use grows, or shrinks if negative.
  using Count = std::function<void(std::int64_t)>;

  /// Creates a segment as large as the machine's memory, at most `max_bytes`.
  ///
  /// Throws: Error{memory} naming what cannot be created or mapped.
  Segment(std::int64_t max_bytes, Count count);

  [[nodiscard]] const base::Descriptor& file() const { return file_; }
  [[nodiscard]] std::byte* data() const { return mapping_.data(); }
  [[nodiscard]] std::int64_t bytes() const { return mapping_.bytes(); }

  /// Allocates at least one byte, zeroed and page-aligned; the pointer keeps the segment alive.
  ///
  /// Throws: Error{memory} when there is no room.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::int64_t bytes);

  /// A range of the segment. Pages beyond the first `backed` bytes are allocated on first touch.
  struct Extent {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    std::int64_t backed = 0;
  };
  /// Allocates as allocate(), but returns the extent, which release() frees.
  [[nodiscard]] Extent reserve(std::int64_t bytes, std::int64_t backed);
  void release(const Extent& extent) noexcept;

 private:
  /// Reuses released pages; false if none suffice.
  bool take_kept(Extent& extent);
  /// Allocates new pages. Returns 0 or the errno.
  int take_new(Extent& extent);
  /// Returns the pages of an extent to the system.
  void drop(std::int64_t offset, std::int64_t bytes) noexcept;
  /// Returns kept pages to the system until at most `bytes` of them are left.
  void drop_kept(std::int64_t bytes) noexcept;

  base::Descriptor file_;
  Mapping mapping_;
  Count count_;
  std::mutex mutex_;
  FreeRanges free_;  // without pages
  FreeRanges kept_;  // free, with pages
  std::int64_t kept_bytes_ = 0;
  std::int64_t in_use_ = 0;  // bytes
  std::int64_t peak_in_use_ = 0;
};

}  // namespace dtrain::comm
