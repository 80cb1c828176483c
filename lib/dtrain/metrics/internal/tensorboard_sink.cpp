#include "dtrain/metrics/internal/tensorboard_sink.h"

#include <variant>
#include <vector>

namespace dtrain::metrics {

void TensorboardSink::write(const Event& event, std::span<const Figure> figures) {
  if (const auto* start = std::get_if<StartEvent>(&event)) {
    file_.text(first_step_ - 1, "start", start->table);
  } else if (const auto* step = std::get_if<StepEvent>(&event)) {
    write_curves(step->step, figures);
  } else if (const auto* evaluation = std::get_if<EvaluationEvent>(&event)) {
    write_curves(evaluation->step, figures);
  } else if (const auto* sample = std::get_if<SampleEvent>(&event)) {
    file_.text(sample->step, "samples", sample->text);
  } else if (const auto* warning = std::get_if<WarningEvent>(&event)) {
    file_.text(warning->step, "warnings", warning->message);
  }
}

void TensorboardSink::write_curves(std::int64_t step, std::span<const Figure> figures) {
  std::vector<Scalar> points;
  for (const Figure& figure : figures) {
    if (!figure.curve_tag.empty()) points.push_back({figure.curve_tag, figure.curve_value});
  }
  file_.scalars(step, points);
}

}  // namespace dtrain::metrics
