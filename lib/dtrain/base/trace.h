// Spans of what a thread does, kept while somebody profiles it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::base {

/// The row of a profile's table that a span's time is added to.
enum class TracePart {
  step,
  data,
  forward,
  backward,
  units,  ///< starting gathers, releases and reductions
  wait,   ///< for other ranks
  clip,
  update,
  evaluation,
  checkpoint,
  other,
};
inline constexpr std::size_t kNumTraceParts = static_cast<std::size_t>(TracePart::other) + 1;

/// A number that tells spans of one name apart: {"block", 3}. An empty key: no label.
struct TraceLabel {
  std::string_view key = {};  ///< with static storage
  std::int64_t value = 0;
};

/// Marks positions in a device's queue of work; the device reaches them after the host has enqueued
/// them.
class DeviceMarks {
 public:
  virtual ~DeviceMarks() = default;
  /// Notes the place behind all that the calling thread has given the device so far; returns its
  /// number.
  virtual std::int64_t mark() = 0;
};

struct TraceSpan {
  std::string_view name;  ///< with static storage
  TracePart part = TracePart::other;
  TraceLabel first;
  TraceLabel second;
  std::int64_t parent = -1;  ///< number of the span around it; -1: none
  Clock::time_point begin;
  Clock::time_point end;  ///< before `begin`: still open
  /// Marks of the device; -1: none.
  std::int64_t device_begin = -1;
  std::int64_t device_end = -1;
};

/// The spans of one thread, as many as there is room for, in the order in which they began.
///
/// Threads: one; a Span finds the trace of its thread.
class Trace {
 public:
  /// capacity: spans, whose memory is taken at once. marks: of the device that works for the
  /// thread, where there is one; must outlive this.
  explicit Trace(std::size_t capacity, DeviceMarks* marks = nullptr) : marks_(marks) {
    spans_.reserve(capacity);
  }

  /// Returns the number of the span that begins here; -1 where there is no room.
  std::int64_t open(std::string_view name, TracePart part, TraceLabel first, TraceLabel second);
  void close(std::int64_t number);
  /// Adds what another thread did from `begin` to now.
  void add_beside(std::string_view name, Clock::time_point begin, TraceLabel label);

  [[nodiscard]] const std::vector<TraceSpan>& spans() const { return spans_; }
  /// What add_beside() was given: these may overlap each other and spans().
  [[nodiscard]] const std::vector<TraceSpan>& beside() const { return beside_; }
  /// Spans for which there was no room.
  [[nodiscard]] std::int64_t num_lost() const { return num_lost_; }

  /// The trace that Spans of the calling thread go to; null: none is kept.
  [[nodiscard]] static Trace*& of_thread() noexcept { return of_thread_; }

 private:
  static thread_local constinit Trace* of_thread_;

  [[nodiscard]] std::int64_t mark() const { return marks_ == nullptr ? -1 : marks_->mark(); }

  DeviceMarks* marks_;
  std::vector<TraceSpan> spans_;
  std::vector<TraceSpan> beside_;
  std::int64_t open_ = -1;  // the innermost
  std::int64_t num_lost_ = 0;
};

/// Records a span, from construction to destruction, in the calling thread's trace. Without a trace
/// it costs one pointer check.
class Span {
 public:
  Span(std::string_view name, TracePart part, TraceLabel first = {}, TraceLabel second = {})
      : trace_(Trace::of_thread()) {
    if (trace_ != nullptr) number_ = trace_->open(name, part, first, second);
  }
  ~Span() {
    if (trace_ != nullptr) trace_->close(number_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace* trace_;
  std::int64_t number_ = -1;
};

}  // namespace dtrain::base
