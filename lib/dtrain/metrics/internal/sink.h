// A destination of a run's events; each implementation has a file of its own.
#pragma once

#include <span>

#include "dtrain/metrics/events.h"
#include "dtrain/metrics/internal/figures.h"

namespace dtrain::metrics {

/// Throws:  Error{data} if the destination is a file that cannot be written.
/// Threads: one.
class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  /// figures: figures_of(event).
  virtual void write(const Event& event, std::span<const Figure> figures) = 0;
  /// The last event was written: waits until the file has it.
  virtual void finish() {}
};

}  // namespace dtrain::metrics
