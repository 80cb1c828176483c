// The interface of a destination of events: a file, TensorBoard or the console.
#pragma once

#include <span>

#include "dtrain/metrics/events.h"
#include "dtrain/metrics/internal/figures.h"

namespace dtrain::metrics {

/// Receives every event of a run.
///
/// Throws:  Error{data} if the destination is a file that cannot be written.
/// Threads: one.
class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  /// Writes an event. figures: figures_of(event), computed once for all sinks.
  virtual void write(const Event& event, std::span<const Figure> figures) = 0;
  /// Ends the destination's file after the last event.
  virtual void finish() {}
};

}  // namespace dtrain::metrics
