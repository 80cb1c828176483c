// Writes each event of a run as a line of metrics.jsonl.
#pragma once

#include <string>

#include "dtrain/metrics/internal/sink.h"
#include "dtrain/metrics/metrics_file.h"

namespace dtrain::metrics {

/// Writes one line per event; console-only events have none.
class JsonlSink final : public Sink {
 public:
  /// appends: if true, appends to an existing file; if false, the first event truncates it.
  JsonlSink(const std::string& path, bool appends);

  void write(const Event& event, std::span<const Figure> figures) override;
  void finish() override { file_.finish(); }

 private:
  AppendedFile file_;
};

}  // namespace dtrain::metrics
