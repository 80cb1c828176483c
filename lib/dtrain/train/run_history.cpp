#include "dtrain/train/run_history.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Moments& moments) {
  return {{"mean", moments.mean}, {"variance", moments.variance}};
}

Moments moments_from(const Json& json) {
  return {.mean = json.at("mean").get<double>(), .variance = json.at("variance").get<double>()};
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
  if (const SpikeStatistics& spikes = history.spikes; spikes.num_steps > 0) {
    json["spikes"] = {{"num_steps", spikes.num_steps},
                      {"loss", to_json(spikes.loss)},
                      {"grad_norm", to_json(spikes.grad_norm)}};
  }
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
    if (const auto found = json.find("spikes"); found != json.end()) {
      history.spikes = {.num_steps = found->at("num_steps").get<std::int64_t>(),
                        .loss = moments_from(found->at("loss")),
                        .grad_norm = moments_from(found->at("grad_norm"))};
    }
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
