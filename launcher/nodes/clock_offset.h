// Estimates how far another machine's clock is from this one's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace launcher {

/// Keeps the samples of the last heartbeats. The one whose answer came fastest counts: an answer
/// that took d lies within d / 2 of the middle of question and answer.
class ClockOffset {
 public:
  /// Times in nanoseconds: of the question and its answer by the own clock, and between them by
  /// the other one.
  void add(std::int64_t asked, std::int64_t other, std::int64_t answered) {
    samples_[next_++ % kSamples] = {answered - asked, asked + (answered - asked) / 2 - other};
  }
  /// By the own clock, the moment that the other clock calls `time`.
  [[nodiscard]] std::int64_t own_time(std::int64_t time) const {
    Sample best{};
    for (std::size_t i = 0; i < kSamples && i < next_; ++i) {
      if (i == 0 || samples_[i].took < best.took) best = samples_[i];
    }
    return time + best.offset;
  }

 private:
  static constexpr std::size_t kSamples = 8;
  struct Sample {
    std::int64_t took = 0;
    std::int64_t offset = 0;
  };

  std::array<Sample, kSamples> samples_{};
  std::size_t next_ = 0;
};

}  // namespace launcher
