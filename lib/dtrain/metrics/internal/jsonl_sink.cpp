#include "dtrain/metrics/internal/jsonl_sink.h"

namespace dtrain::metrics {

JsonlSink::JsonlSink(const std::string& path, bool appends)
    : file_(path, appends ? AppendedFile::Start::appended : AppendedFile::Start::empty, "lines") {}

void JsonlSink::write(const Event& /*event*/, std::span<const Figure> figures) {
  if (figures.empty()) return;
  nlohmann::ordered_json line;
  for (const Figure& figure : figures) line[figure.key] = figure.value;
  file_.write_line(line);
}

}  // namespace dtrain::metrics
