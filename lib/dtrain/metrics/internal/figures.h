// Maps each event to its values: keys in metrics.jsonl and curves in TensorBoard.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/metrics/events.h"

namespace dtrain::metrics {

/// A named value of an event.
struct Figure {
  std::string key;                  ///< in metrics.jsonl
  nlohmann::ordered_json value;     ///< in metrics.jsonl
  std::string_view curve_tag = {};  ///< in TensorBoard; empty if it has no curve
  double curve_value = 0;
};

/// Returns the figures of an event in the order of its line in metrics.jsonl, "event" first; empty
/// for console-only events.
[[nodiscard]] std::vector<Figure> figures_of(const Event& event);

/// Clears the sign of a NaN, which depends on the CPU; returns other values unchanged.
[[nodiscard]] double without_nan_sign(double value);

}  // namespace dtrain::metrics
