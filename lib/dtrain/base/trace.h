// Records timed spans of a thread's work for --profile.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::base {

/// The category of a span: the row of the profile table to which its time is added.
enum class TracePart {
  step,
  data,
  forward,
  backward,
  units,  ///< starting a unit's gathers, releases and reductions
  wait,   ///< for other ranks
  clip,
  update,
  evaluation,
  checkpoint,
  other,
};
inline constexpr std::size_t kNumTraceParts = static_cast<std::size_t>(TracePart::other) + 1;

/// A number that distinguishes spans of one name: {"block", 3}. An empty key: no label.
struct TraceLabel {
  std::string_view key = {};  ///< with static storage
  std::int64_t value = 0;
};

/// Enqueues marks on a device's stream. A mark's time is known once the device has reached it.
class DeviceMarks {
 public:
  virtual ~DeviceMarks() = default;
  /// Enqueues a mark after all work that the calling thread has enqueued; returns its number.
  virtual std::int64_t mark() = 0;
};

struct TraceSpan {
  std::string_view name;  ///< with static storage
  TracePart part = TracePart::other;
  TraceLabel first;
  TraceLabel second;
  std::int64_t parent = -1;  ///< number of the enclosing span; -1: none
  Clock::time_point begin;
  Clock::time_point end;  ///< before `begin`: still open
  /// Marks of the device; -1: none.
  std::int64_t device_begin = -1;
  std::int64_t device_end = -1;
};

/// The spans of one thread in the order of their starts, up to a fixed capacity.
///
/// Threads: one; a Span finds the trace of its thread.
class Trace {
 public:
  /// capacity: spans, allocated at once. marks: those of the thread's device, or null; must outlive
  /// this.
  explicit Trace(std::size_t capacity, DeviceMarks* marks = nullptr) : marks_(marks) {
    spans_.reserve(capacity);
  }

  /// Opens a span and returns its number; -1 if the trace is full.
  std::int64_t open(std::string_view name, TracePart part, TraceLabel first, TraceLabel second);
  void close(std::int64_t number);
  /// Adds work of another thread, from `begin` to now.
  void add_concurrent(std::string_view name, Clock::time_point begin, TraceLabel label);

  [[nodiscard]] const std::vector<TraceSpan>& spans() const { return spans_; }
  /// The spans of add_concurrent(), which may overlap each other and spans().
  [[nodiscard]] const std::vector<TraceSpan>& concurrent() const { return concurrent_; }
  /// The number of spans dropped because the trace was full.
  [[nodiscard]] std::int64_t num_lost() const { return num_lost_; }

  /// The calling thread's current trace; null: not tracing.
  [[nodiscard]] static Trace*& of_thread() noexcept { return of_thread_; }

 private:
  static thread_local constinit Trace* of_thread_;

  [[nodiscard]] std::int64_t mark() const { return marks_ == nullptr ? -1 : marks_->mark(); }

  DeviceMarks* marks_;
  std::vector<TraceSpan> spans_;
  std::vector<TraceSpan> concurrent_;
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
