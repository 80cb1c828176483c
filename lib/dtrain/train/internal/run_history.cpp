#include "dtrain/train/internal/run_history.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dtrain/base/elementary.h"
#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpikeLevels = "spike_levels";
constexpr const char* kFormerSpikes = "spikes";
constexpr const char* kSkippedInARow = "skipped_in_a_row";

Json to_json(const FigureLevel& level) {
  return {{"num_steps", level.num_steps},
          {"mean", level.mean},
          {"variance", level.variance},
          {"num_beyond", level.num_beyond},
          {"mean_beyond", level.mean_beyond}};
}

FigureLevel level_from(const Json& json) {
  return {.num_steps = json.at("num_steps").get<std::int64_t>(),
          .mean = json.at("mean").get<double>(),
          .variance = json.at("variance").get<double>(),
          .num_beyond = json.at("num_beyond").get<std::int64_t>(),
          .mean_beyond = json.at("mean_beyond").get<double>()};
}

// Converts an older dtrain's mean and variance of the figure itself. A figure that was always 0 has
// no level.
FigureLevel level_from_moments(const Json& json, std::int64_t num_steps) {
  const auto mean = json.at("mean").get<double>();
  const auto variance = json.at("variance").get<double>();
  const double ratio = variance / mean / mean;
  if (mean < std::numeric_limits<double>::min() || !(ratio >= 0) || !std::isfinite(ratio))
    return {};
  const double spread = base::logarithm(1 + ratio);
  return {.num_steps = num_steps, .mean = base::logarithm(mean) - spread / 2, .variance = spread};
}

SpikeStatistics spikes_from(const Json& history) {
  if (const auto levels = history.find(kSpikeLevels); levels != history.end()) {
    return {.loss = level_from(levels->at("loss")),
            .grad_norm = level_from(levels->at("grad_norm"))};
  }
  const auto former = history.find(kFormerSpikes);
  if (former == history.end()) return {};
  const auto num_steps = former->at("num_steps").get<std::int64_t>();
  return {.loss = level_from_moments(former->at("loss"), num_steps),
          .grad_norm = level_from_moments(former->at("grad_norm"), num_steps)};
}

}  // namespace

bool ValidationRecord::note(std::int64_t step, double loss) {
  if (step <= last_step) return false;
  last_step = step;
  ++num_since_best;
  if (loss >= best_loss) return false;
  best_step = step;
  best_loss = loss;
  num_since_best = 0;
  return true;
}

std::string to_text(const RunHistory& history) {
  Json json = Json::object();
  if (history.data_step > 0) json["data_step"] = history.data_step;
  if (const ValidationRecord& validation = history.validation; validation.best_step >= 0) {
    json["validation"] = {{"best_step", validation.best_step},
                          {"best_loss", validation.best_loss},
                          {"last_step", validation.last_step},
                          {"num_since_best", validation.num_since_best}};
    if (!validation.data.empty()) json["validation"]["data"] = validation.data;
  }
  if (const SpikeStatistics& spikes = history.spikes; spikes != SpikeStatistics{}) {
    json[kSpikeLevels] = {{"loss", to_json(spikes.loss)}, {"grad_norm", to_json(spikes.grad_norm)}};
  }
  if (history.skipped_in_a_row > 0) json[kSkippedInARow] = history.skipped_in_a_row;
  return json.dump();
}

RunHistory parse_history(const std::string& text, const std::string& path) {
  RunHistory history;
  try {
    const Json json = Json::parse(text);
    history.data_step = json.value("data_step", std::int64_t{0});
    if (const auto found = json.find("validation"); found != json.end()) {
      history.validation = {.data = found->value("data", std::string()),
                            .best_step = found->at("best_step").get<std::int64_t>(),
                            .best_loss = found->at("best_loss").get<double>(),
                            .last_step = found->at("last_step").get<std::int64_t>(),
                            .num_since_best = found->at("num_since_best").get<std::int64_t>()};
    }
    history.spikes = spikes_from(json);
    history.skipped_in_a_row = json.value(kSkippedInARow, std::int64_t{0});
  } catch (const Json::exception& error) {
    base::fail(base::ErrorKind::checkpoint, "checkpoint '{}': bad history: {}", path, error.what());
  }
  return history;
}

std::string evaluation_data(const data::DataIdentity& data, const config::Config& config) {
  const std::string_view validation = data.validation;
  const bool is_known = !validation.empty() && !data::is_without_checksum(validation);
  if (!is_known || validation == "none") return {};
  return fmt::format("{} of {} tokens, {} of them evaluated", validation, config.data.seq_len,
                     config.report.eval_sequences);
}

RunHistory history_of(const checkpoint::format::Manifest& manifest, const config::Config& saved,
                      const std::string& path) {
  RunHistory history = parse_history(manifest.history, path);
  ValidationRecord& record = history.validation;
  if (record.best_step >= 0 && record.data.empty()) {
    record.data = evaluation_data(data::identity_from(manifest.data_fingerprint), saved);
  }
  return history;
}

}  // namespace dtrain::train
