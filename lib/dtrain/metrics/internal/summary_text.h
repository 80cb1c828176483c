// Formats the summary of a finished run for people.
#pragma once

#include <string>

#include "dtrain/metrics/events.h"

namespace dtrain::metrics {

/// Returns "done: 44 steps in 4.6 s (12.3k tok/s)" and an indented line for each result, without a
/// final newline.
[[nodiscard]] std::string summary_text(const RunSummary& summary);

/// Returns ", 1.2345 bits per byte"; empty if the text's size is unknown.
[[nodiscard]] std::string units_text(const EvaluationEvent& event);

}  // namespace dtrain::metrics
