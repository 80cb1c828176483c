// Writes the curves and texts of a run as TensorBoard event files.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/metrics/event_file.h"
#include "dtrain/metrics/internal/sink.h"

namespace dtrain::metrics {

/// Writes steps and evaluations as curves; writes the start, samples and warnings as texts.
class TensorboardSink final : public Sink {
 public:
  /// first_step: first step of this launch.
  TensorboardSink(const std::string& folder, std::int64_t first_step)
      : file_(folder, first_step), first_step_(first_step) {}

  void write(const Event& event, std::span<const Figure> figures) override;
  void finish() override { file_.finish(); }

 private:
  void write_curves(std::int64_t step, std::span<const Figure> figures);

  EventFile file_;
  std::int64_t first_step_;
};

}  // namespace dtrain::metrics
