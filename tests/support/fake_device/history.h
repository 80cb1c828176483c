// Who wrote and read which bytes of one block of memory.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "support/fake_device/clock.h"

namespace dtrain::testing::fake {

/// Bytes [begin, end) of a block.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// An earlier use of the same bytes that nothing orders before a later one.
struct Conflict {
  Range range;
  Epoch before;
  bool was_write = false;
};

/// What a kernel does to some bytes.
struct Use {
  Epoch kernel;
  bool is_write = false;
};

/// The last writer of each byte, and its readers since.
///
/// Source:  Flanagan and Freund, FastTrack (PLDI 2009). Differs: over ranges of bytes.
/// Threads: one at a time.
class History {
 public:
  /// `birth` counts as a write of all `bytes`: whoever uses fresh memory must come after its
  /// allocation, since an earlier owner's kernels may still run before it.
  History(std::size_t bytes, const Epoch& birth);

  /// Adds a use; returns the first earlier one that is not among `known`. Two uses of which none
  /// writes never conflict.
  [[nodiscard]] std::optional<Conflict> add(std::span<const Range> ranges, const Use& use,
                                            const Clock& known);

  /// A use that is not among `known` and not on a stream of `excused`, if there is one.
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
