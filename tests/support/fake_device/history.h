// Vector clocks, and the access history of a block's bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace dtrain::testing::fake {

/// Index of a stream in this process, over all devices; the first ones, one per device, are
/// the default streams.
using StreamNumber = std::size_t;

/// A vector clock: for each stream, the number of its kernels that precede a point in the
/// execution. A kernel's tick is its index in its stream, counted from 1.
class Clock {
 public:
  [[nodiscard]] std::uint64_t of(StreamNumber stream) const {
    return stream < ticks_.size() ? ticks_[stream] : 0;
  }
  void raise(StreamNumber stream, std::uint64_t tick) {
    if (ticks_.size() <= stream) ticks_.resize(stream + 1);
    ticks_[stream] = std::max(ticks_[stream], tick);
  }
  void join(const Clock& other) {
    for (StreamNumber stream = 0; stream < other.size(); ++stream) raise(stream, other.of(stream));
  }
  /// True if all kernels of `other` are included.
  [[nodiscard]] bool includes(const Clock& other) const {
    for (StreamNumber stream = 0; stream < other.size(); ++stream) {
      if (of(stream) < other.of(stream)) return false;
    }
    return true;
  }
  /// One past the last stream that may have a nonzero tick.
  [[nodiscard]] StreamNumber size() const { return ticks_.size(); }

 private:
  std::vector<std::uint64_t> ticks_;
};

/// The identity of a kernel: its stream and tick.
struct Epoch {
  StreamNumber stream = 0;
  /// 0: no kernel.
  std::uint64_t tick = 0;
  /// A string literal, or owned by the dispatcher.
  const char* name = "";

  [[nodiscard]] bool is_before(const Clock& clock) const { return clock.of(stream) >= tick; }
};

/// Bytes [begin, end) of a block.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// An earlier access to the same bytes that is not ordered before a later access.
struct Conflict {
  Range range;
  Epoch before;
  bool was_write = false;
};

/// A kernel's access to some bytes.
struct Use {
  Epoch kernel;
  bool is_write = false;
};

/// The last write of each byte, and the reads since then.
///
/// Source:  Flanagan and Freund, FastTrack (PLDI 2009). Differs: over ranges of bytes.
/// Threads: one at a time.
class History {
 public:
  /// birth: the allocation, which counts as a write of all bytes. Uses of fresh memory must be
  /// ordered after it, because kernels of the memory's previous owner may still run before it.
  History(std::size_t bytes, const Epoch& birth);

  /// Adds a use; returns the first conflicting earlier use that is not in `known`. Two reads
  /// never conflict.
  [[nodiscard]] std::optional<Conflict> add(std::span<const Range> ranges, const Use& use,
                                            const Clock& known);

  /// Returns a use that is not in `known` and not on a stream in `excused`, if any.
  [[nodiscard]] std::optional<Conflict> unordered(const Clock& known,
                                                  std::span<const StreamNumber> excused) const;

 private:
  struct Cell {  // bytes with the same history
    std::size_t end = 0;
    Epoch write;
    std::vector<Epoch> reads;  // since that write, the last of each stream
  };
  using Cells = std::map<std::size_t, Cell>;  // by first byte; they cover the block

  void split(std::size_t at);
  [[nodiscard]] static std::optional<Conflict> conflict(const Cells::value_type& entry,
                                                        const Clock& known, bool is_write);

  Cells cells_;
};

}  // namespace dtrain::testing::fake
