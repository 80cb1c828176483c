// Memory of one rank that other processes map as well.
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

/// A file's memory, shared with whoever else maps it.
class Mapping {
 public:
  /// Maps all of the file, which may be closed afterwards.
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

/// Which parts of a range of numbers are free. Threads: one at a time.
class FreeRanges {
 public:
  FreeRanges() = default;
  explicit FreeRanges(std::int64_t size) : ranges_{{0, size}} {}

  /// Takes the smallest place where `size` numbers are free; nothing if there is none.
  std::optional<std::int64_t> take(std::int64_t size);
  /// Takes a range, as large as it is; there is one.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
  };
  Range take_any();
  void give_back(std::int64_t begin, std::int64_t size);

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // size by begin; no two touch
};

/// Allocates whole pages of an unnamed file (memfd). Released memory keeps its pages for the next
/// allocation, which saves allocating them again and mapping them in every process. All pages
/// together never exceed the largest amount in use so far by more than a fourth. The file ends with
/// the last process that has it open or mapped.
///
/// Threads: any.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  /// Receives the bytes by which the memory in use grows, or shrinks if negative.
  using Count = std::function<void(std::int64_t)>;

  /// As large as the machine's memory, at most `most_bytes`.
  ///
  /// Throws: Error{memory} naming what the system refused.
  Segment(std::int64_t most_bytes, Count count);

  [[nodiscard]] const base::Descriptor& file() const { return file_; }
  [[nodiscard]] std::byte* data() const { return mapping_.data(); }
  [[nodiscard]] std::int64_t bytes() const { return mapping_.bytes(); }

  /// Zeroed bytes at a page's start, at least one, which keep the segment alive.
  ///
  /// Throws: Error{memory} when there is no room.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::int64_t bytes);

  /// A part of the segment. Pages beyond the first `backed` bytes take room when they are touched.
  struct Extent {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    std::int64_t backed = 0;
  };
  /// The same by their place, to be given to release().
  [[nodiscard]] Extent reserve(std::int64_t bytes, std::int64_t backed);
  void release(const Extent& extent) noexcept;

 private:
  /// Takes pages that a former owner left; false if none suffice.
  bool take_kept(Extent& extent);
  /// Takes new pages. Returns 0 or the errno.
  int take_new(Extent& extent);
  /// Gives the pages of an extent back to the system.
  void drop(std::int64_t offset, std::int64_t bytes) noexcept;
  /// Gives kept pages back until no more than `bytes` of them are left.
  void drop_kept(std::int64_t bytes) noexcept;

  base::Descriptor file_;
  Mapping mapping_;
  Count count_;
  std::mutex mutex_;
  FreeRanges free_;  // without pages
  FreeRanges kept_;  // free, with pages
  std::int64_t kept_bytes_ = 0;
  std::int64_t in_use_ = 0;       // bytes
  std::int64_t most_in_use_ = 0;  // so far
};

}  // namespace dtrain::comm
