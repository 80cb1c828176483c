#include "dtrain/report/page.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "dtrain/base/text/text.h"

namespace dtrain::report {
namespace {

// Longer curves are downsampled. More than kMaxFullCurves runs share the points of that many: a page
// with 100 full runs would take 40 MB.
constexpr std::size_t kMaxPoints = 2000;
constexpr std::size_t kMaxFullCurves = 20;

// The last event of this name, unless a start follows it: an ended run may have been restarted.
const Json* since_start(const RunRecord& run, std::string_view name) {
  const auto found = run.events_named(name);
  const auto starts = run.events_named("start");
  // Pointers into one vector compare in file order.
  const bool is_last = !found.empty() && (starts.empty() || starts.back() < found.back());
  return is_last ? found.back() : nullptr;
}

std::string text_at(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? std::string() : plain_text(*found);
}

struct RunState {
  /// "finished", "running", "stopped" (and saved), "failed", "dead" (its process disappeared
  /// without an end record), or "unknown".
  std::string kind;
  std::string text;  ///< for people
};

RunState state_of(const RunRecord& run) {
  const std::int64_t last = run.last_step();
  if (const Json* end = since_start(run, "end"); end && end->value("step", Json()) == last) {
    const std::string reason = text_at(*end, "reason");
    return {"finished", reason.empty() ? "finished" : "finished: " + reason};
  }
  if (run.is_held.value_or(false)) return {"running", fmt::format("running, at step {}", last)};
  if (run.wants_requeue) {
    return {"stopped", fmt::format("stopped after step {}, and saved", last)};
  }
  if (const Json* failure = since_start(run, "failure")) {
    const std::string message = text_at(*failure, "message");
    return {"failed", "failed: " + message.substr(0, message.find('\n'))};
  }
  if (run.is_held)
    return {"dead", fmt::format("dead: its process disappeared after step {}", last)};
  return {"unknown", fmt::format("at step {}: running or failed", last)};
}

// Escapes JSON for a script element, which "<" could end; "&" and ">" are escaped for good measure.
std::string embedded(const Json& data) {
  constexpr bool kOnlyAscii = true;
  std::string text;
  for (const char c : data.dump(-1, ' ', kOnlyAscii, Json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&') {
      text += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      text += c;
    }
  }
  return text;
}

// A command line quoted for a shell.
std::string command_text(const Json& words) {
  std::vector<std::string> shown;
  for (const Json& word : words) shown.push_back(base::shell_word(plain_text(word)));
  return fmt::format("{}", fmt::join(shown, " "));
}

const Curve* curve_of(const RunRecord& run, std::string_view key) {
  const auto found = run.curves.find(key);
  return found == run.curves.end() || found->second.size() == 0 ? nullptr : &found->second;
}

double sum_of(const RunRecord& run, std::string_view key) {
  const Curve* curve = curve_of(run, key);
  return curve == nullptr ? 0 : std::accumulate(curve->values.begin(), curve->values.end(), 0.0);
}

Json curve_json(const Curve& curve) {
  Json values = Json::array();
  for (const double value : curve.values) values.push_back(json_number(value));
  return {{"steps", curve.steps}, {"values", std::move(values)}};
}

// The indices of the lowest and the highest finite value in [begin, end), and of the first that is not
// finite.
std::set<std::size_t> extremes_of(const std::vector<double>& values, std::size_t begin,
                                  std::size_t end) {
  std::optional<std::size_t> lowest;
  std::optional<std::size_t> highest;
  std::optional<std::size_t> nonfinite;
  for (std::size_t i = begin; i < end; ++i) {
    if (!std::isfinite(values[i])) {
      if (!nonfinite) nonfinite = i;
      continue;
    }
    if (!lowest || values[i] < values[*lowest]) lowest = i;
    if (!highest || values[i] > values[*highest]) highest = i;
  }
  std::set<std::size_t> marks;
  for (const auto& mark : {lowest, highest, nonfinite}) {
    if (mark) marks.insert(*mark);
  }
  return marks;
}

// Downsamples a curve to at most `max_points`: keeps the first point, the last and, of each interval in
// between, the lowest and the highest finite point and the first that is not finite.
Curve downsampled(const Curve& curve, std::size_t max_points) {
  if (curve.size() <= max_points) return curve;
  const auto is_finite = [](double value) { return std::isfinite(value); };
  const std::size_t per_interval = std::ranges::all_of(curve.values, is_finite) ? 2 : 3;
  const std::size_t num_intervals = (max_points - 2) / per_interval;
  const std::size_t inner = curve.size() - 2;
  std::set<std::size_t> kept{0, curve.size() - 1};
  for (std::size_t interval = 0; interval < num_intervals; ++interval) {
    kept.merge(extremes_of(curve.values, 1 + interval * inner / num_intervals,
                           1 + (interval + 1) * inner / num_intervals));
  }
  Curve thin;
  for (const std::size_t index : kept) {
    thin.steps.push_back(curve.steps[index]);
    thin.values.push_back(curve.values[index]);
  }
  return thin;
}

// The cumulative time of steps, for charts over time.
Curve running_sum(const Curve& curve) {
  Curve sum = curve;
  std::partial_sum(curve.values.begin(), curve.values.end(), sum.values.begin());
  return sum;
}

Json curves_json(const RunRecord& run, std::size_t points) {
  Json curves = Json::object();
  for (const auto& [key, curve] : run.curves) curves[key] = curve_json(downsampled(curve, points));
  if (const Curve* seconds = curve_of(run, "step_seconds")) {
    curves["seconds"] = curve_json(downsampled(running_sum(*seconds), points));
  }
  return curves;
}

// Adds a fact for people: its name, its value, and its format in page.js.
void add_fact(Json& facts, std::string_view name, Json value, std::string_view kind) {
  facts.push_back(Json::array({name, std::move(value), kind}));
}

struct Lowest {
  double loss;
  std::int64_t step;
};

// The lowest loss on the sequences of the last evaluation.
std::optional<Lowest> lowest_validation(const RunRecord& run) {
  const Curve* curve = curve_of(run, "val_loss");
  if (curve == nullptr) return std::nullopt;
  Lowest lowest{curve->values.back(), curve->steps.back()};
  for (std::size_t i = 0; i < curve->size(); ++i) {
    if (run.evaluated_data[i] != run.evaluated_data.back()) continue;
    const double loss = curve->values[i];
    const bool is_earlier = loss == lowest.loss && curve->steps[i] < lowest.step;
    if (loss < lowest.loss || is_earlier || std::isnan(lowest.loss))
      lowest = {loss, curve->steps[i]};
  }
  return lowest;
}

std::optional<double> median_of(const RunRecord& run, std::string_view key) {
  const Curve* curve = curve_of(run, key);
  std::vector<double> values;
  if (curve != nullptr) {
    std::ranges::copy_if(curve->values, std::back_inserter(values),
                         [](double value) { return std::isfinite(value); });
  }
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The mean of the finite losses of the last steps.
struct LastLoss {
  std::int64_t first_step;
  std::int64_t last_step;
  double mean;
};

std::optional<LastLoss> last_loss(const RunRecord& run) {
  constexpr std::size_t kMost = 50;
  const Curve* loss = curve_of(run, "loss");
  if (loss == nullptr) return std::nullopt;
  const std::size_t first = loss->size() - std::min(kMost, loss->size());
  double sum = 0;
  int count = 0;
  for (std::size_t i = first; i < loss->size(); ++i) {
    if (!std::isfinite(loss->values[i])) continue;
    sum += loss->values[i];
    ++count;
  }
  return LastLoss{loss->steps[first], loss->steps.back(), sum / count};  // NaN if none is finite
}

// The last start event; an empty object without one.
const Json& last_start(const RunRecord& run) {
  static const Json kNone = Json::object();
  const auto starts = run.events_named("start");
  return starts.empty() ? kNone : *starts.back();
}

Json parameters_of(const RunRecord& run) { return last_start(run).value("parameters", Json()); }

// The figures by which runs are compared; unknown ones are omitted.
Json figures_json(const RunRecord& run) {
  Json figures{{"steps", run.last_step()}, {"parameters", parameters_of(run)}};
  if (const auto loss = last_loss(run)) figures["loss"] = json_number(loss->mean);
  if (const auto lowest = lowest_validation(run)) {
    figures["val_loss"] = json_number(curve_of(run, "val_loss")->values.back());
    figures["lowest_val_loss"] = json_number(lowest->loss);
  }
  const double seconds = sum_of(run, "step_seconds");
  if (seconds > 0) figures["seconds"] = seconds;
  if (const Curve* tokens = curve_of(run, "tokens")) figures["tokens"] = tokens->values.back();
  if (const auto rate = median_of(run, "tokens_per_second")) figures["tokens_per_second"] = *rate;
  if (const Curve* memory = curve_of(run, "memory_bytes")) {
    figures["memory"] = std::ranges::max(memory->values);
  }
  return figures;
}

// The facts of a run's card, taken from its figures where possible.
Json summary_json(const RunRecord& run, const Json& figures) {
  Json facts = Json::array();
  const auto add_figure = [&](const char* key, std::string_view name, std::string_view kind) {
    if (figures.contains(key)) add_fact(facts, name, figures[key], kind);
  };
  add_figure("parameters", "parameters", "count");
  const std::string steps = text_at(run.settings, "train.steps");
  add_fact(facts, "steps",
           fmt::format("{}{}", run.last_step(), steps.empty() ? "" : " of " + steps), "text");
  if (const auto loss = last_loss(run)) {
    const std::string name =
        loss->first_step == loss->last_step
            ? fmt::format("loss, step {}", loss->last_step)
            : fmt::format("loss, steps {} to {}", loss->first_step, loss->last_step);
    add_figure("loss", name, "number");
  }
  add_figure("val_loss", "validation loss", "number");
  if (const auto lowest = lowest_validation(run)) {
    add_fact(facts, "lowest", fmt::format("{:.4f} after step {}", lowest->loss, lowest->step),
             "text");
  }
  add_figure("tokens", "tokens", "count");
  add_figure("seconds", "time in steps", "seconds");
  if (figures.contains("seconds")) {
    const double percent = 100 * sum_of(run, "wait_seconds") / figures["seconds"].get<double>();
    add_fact(facts, "waiting", fmt::format("{:.1f} % of it, rank 0", percent), "text");
  }
  add_figure("memory", "peak memory", "bytes");
  return facts;
}

std::string mesh_text(const Json& start) {
  std::vector<std::string> axes;
  const Json mesh = start.value("mesh", Json::object());
  for (const auto& [axis, size] : mesh.items()) axes.push_back(axis + ' ' + size.dump());
  return fmt::format("{}", fmt::join(axes, ", "));
}

Json provenance_of(const Json& start) {
  Json found = start.value("provenance", Json());
  return found.is_object() ? found : Json::object();
}

Json start_json(const Json& start) {
  const Json provenance = provenance_of(start);
  return {
      {"started", text_at(provenance, "started")},
      {"ranks", text_at(start, "world_size")},
      {"layout", fmt::format("{} ({})", mesh_text(start), text_at(start, "backend"))},
      {"machine", fmt::format("{}, {}", text_at(provenance, "host"), text_at(provenance, "cpu"))},
      {"version",
       fmt::format("{} {}", text_at(provenance, "version"), text_at(provenance, "commit"))},
      {"reason", text_at(provenance, "restart_reason")}};
}

double predicted_memory(const Json& start) {
  double sum = 0;
  for (const Json& bytes : start.value("memory_predicted_bytes", Json::object())) {
    if (bytes.is_number()) sum += bytes.get<double>();
  }
  return sum;
}

Json layout_json(const RunRecord& run) {
  Json facts = Json::array();
  const Json& start = last_start(run);
  if (start.empty()) return facts;
  add_fact(facts, "folder", run.folder, "text");
  add_fact(facts, "parameters", start.value("parameters", Json()), "count");
  add_fact(facts, "strategy", text_at(run.settings, "layout.strategy"), "text");
  add_fact(facts, "ranks", fmt::format("{} ({})", text_at(start, "world_size"), mesh_text(start)),
           "text");
  add_fact(facts, "backend", text_at(start, "backend"), "text");
  add_fact(facts, "device, dtype",
           fmt::format("{}, {}", text_at(run.settings, "machine.device"),
                       text_at(run.settings, "machine.dtype")),
           "text");
  add_fact(facts, "equal bits with", text_at(start, "bitwise_class"), "text");
  if (const auto found = run.events_named("memory"); !found.empty()) {
    add_fact(facts, "predicted memory", found.back()->value("predicted_bytes", Json()), "bytes");
    add_fact(facts, "measured", found.back()->value("peak_bytes", Json()), "bytes");
  } else {
    add_fact(facts, "predicted memory of a rank", predicted_memory(start), "bytes");
  }
  if (run.num_unreadable > 0) {
    add_fact(facts, "unreadable lines", run.num_unreadable, "count");
  }
  return facts;
}

Json checkpoint_json(const RunRecord& run, const Json& event) {
  std::error_code error;
  // A run folder may have been moved since.
  const std::string name = std::filesystem::path(text_at(event, "path")).filename().string();
  const auto path = std::filesystem::path(run.folder) / "checkpoints" / name;
  Json checkpoint = Json::object();
  for (const char* key : {"step", "bytes", "stall_seconds", "seconds"}) {
    checkpoint[key] = event.value(key, Json());
  }
  checkpoint["now"] = std::filesystem::exists(path, error) ? "there" : "removed";
  return checkpoint;
}

Json events_json(const RunRecord& run, std::string_view name, const char* text) {
  Json list = Json::array();
  for (const Json* event : run.events_named(name)) {
    list.push_back({{"step", event->value("step", Json())}, {text, text_at(*event, text)}});
  }
  return list;
}

Json run_json(const RunRecord& run, std::size_t points) {
  Json starts = Json::array();
  std::string command;
  for (const Json* start : run.events_named("start")) {
    starts.push_back(start_json(*start));
    command = command_text(provenance_of(*start).value("command_line", Json()));
  }
  Json checkpoints = Json::array();
  for (const Json* event : run.events_named("checkpoint")) {
    checkpoints.push_back(checkpoint_json(run, *event));
  }
  const RunState state = state_of(run);
  const Json figures = figures_json(run);
  return {{"name", run.name},
          {"state", state.text},
          {"state_kind", state.kind},
          {"summary", summary_json(run, figures)},
          {"figures", figures},
          {"curves", curves_json(run, points)},
          {"settings", run.settings},
          {"layout", layout_json(run)},
          {"starts", std::move(starts)},
          {"checkpoints", std::move(checkpoints)},
          {"warnings", events_json(run, "error", "message")},
          {"samples", events_json(run, "sample", "text")},
          {"command", command}};
}

}  // namespace

Json page_data(const std::vector<RunRecord>& runs, const std::string& version,
               const std::string& written) {
  Json list = Json::array();
  constexpr std::size_t kFewest = 100;
  const std::size_t share = kMaxFullCurves * kMaxPoints / std::max(runs.size(), kMaxFullCurves);
  for (const RunRecord& run : runs) list.push_back(run_json(run, std::max(share, kFewest)));
  return {{"version", version}, {"written", written}, {"runs", std::move(list)}};
}

std::string page_of(const Json& data) {
  return fmt::format(R"({}<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>dtrain report</title>
<style>
{}</style>
</head>
<body>
<header><h1>dtrain report</h1></header>
<noscript>This page draws its curves with JavaScript, which is off.</noscript>
<main></main>
<footer id="written"></footer>
<script type="application/json" id="data">{}</script>
<script>
{}</script>
</body>
</html>
)",
                     kPageMark, kPageStyle, embedded(data), kPageProgram);
}

}  // namespace dtrain::report
