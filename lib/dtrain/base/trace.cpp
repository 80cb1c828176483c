#include "dtrain/base/trace.h"

namespace dtrain::base {

thread_local constinit Trace* Trace::of_thread_ = nullptr;

std::int64_t Trace::open(std::string_view name, TracePart part, TraceLabel first,
                         TraceLabel second) {
  if (spans_.size() == spans_.capacity()) {
    ++num_lost_;
    return -1;
  }
  const Clock::time_point now = Clock::now();
  spans_.push_back({.name = name,
                    .part = part,
                    .first = first,
                    .second = second,
                    .parent = open_,
                    .begin = now,
                    .end = now - Clock::duration(1),
                    .device_begin = mark()});
  return open_ = static_cast<std::int64_t>(spans_.size()) - 1;
}

void Trace::close(std::int64_t number) {
  if (number < 0) return;
  TraceSpan& span = spans_[static_cast<std::size_t>(number)];
  span.device_end = mark();
  span.end = Clock::now();
  open_ = span.parent;
}

void Trace::add_concurrent(std::string_view name, Clock::time_point begin, TraceLabel label) {
  concurrent_.push_back({.name = name,
                         .part = TracePart::other,
                         .first = label,
                         .second = {},
                         .begin = begin,
                         .end = Clock::now()});
}

}  // namespace dtrain::base
