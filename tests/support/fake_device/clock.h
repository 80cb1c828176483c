// Vector clocks: which kernels are known to come before a point of the program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrain::testing::fake {

/// Number of a stream in this process, over all devices; streams below the number of devices are
/// the devices' default streams.
using StreamNumber = std::size_t;

/// The kernels before a point: of each stream, its first so many. A kernel's number in its stream
/// is its tick; the first has 1.
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
  /// Whether all kernels of `other` are among these.
  [[nodiscard]] bool includes(const Clock& other) const {
    for (StreamNumber stream = 0; stream < other.size(); ++stream) {
      if (of(stream) < other.of(stream)) return false;
    }
    return true;
  }
  /// One more than the last stream that may have kernels here.
  [[nodiscard]] StreamNumber size() const { return ticks_.size(); }

 private:
  std::vector<std::uint64_t> ticks_;
};

/// One kernel's place in the order.
struct Epoch {
  StreamNumber stream = 0;
  /// 0: no kernel.
  std::uint64_t tick = 0;
  /// A literal, or the dispatcher's.
  const char* name = "";

  [[nodiscard]] bool is_before(const Clock& clock) const { return clock.of(stream) >= tick; }
};

}  // namespace dtrain::testing::fake
