#include "dtrain/metrics/metrics_file.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <system_error>

#include "dtrain/base/atomic_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"

namespace dtrain::metrics {

namespace {

enum class Line { kept, later, unreadable };

Line kind_of(const std::string& line, std::int64_t step) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Line::unreadable;
  const auto found = json.find("step");
  if (found == json.end()) return Line::kept;
  if (!found->is_number_integer()) return Line::unreadable;
  return found->get<std::int64_t>() <= step ? Line::kept : Line::later;
}

// Lines with an "event"; those that cannot be read are passed over.
void for_each_event(const std::string& path,
                    const std::function<void(const nlohmann::json&)>& visit) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;  // a FIFO would not answer
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"event\"") == std::string::npos) continue;  // a step: there are many
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("event")) visit(json);
  }
}

}  // namespace

void cut_back(const std::string& path, std::int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error))) return;
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  std::uintmax_t num_first = 0;  // bytes that are kept and come before any that are not
  std::int64_t num_unreadable = 0;
  bool has_later = false;
  // A last line without its end was cut short.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Line kind = kind_of(line, step);
    has_later = has_later || kind == Line::later;
    if (kind == Line::unreadable) ++num_unreadable;
    if (kind == Line::kept && !has_later) kept += line + "\n";
    if (num_unreadable == 0) num_first = kept.size();
  }
  // A disk without room can still cut a file short.
  if (!file.bad() && num_first == kept.size()) std::filesystem::resize_file(path, num_first, error);
  if (file.bad() || error) {
    base::fail(base::ErrorKind::data, "{}: cannot be cut back to step {}: {}", path, step,
               error ? error.message() : "it cannot be read");
  }
  if (num_unreadable > 0) {
    base::log_warning("{}: {} could not be read and {} left out", path,
                      num_unreadable == 1 ? "a line" : fmt::format("{} lines", num_unreadable),
                      num_unreadable == 1 ? "is" : "are");
  }
  if (num_first == kept.size()) return;
  base::AtomicFile result(path, base::ErrorKind::data);
  result.write(std::as_bytes(std::span(kept)));
  result.commit();
}

bool has_evaluation(const std::string& path, std::int64_t step) {
  bool is_found = false;
  const nlohmann::json none;
  for_each_event(path, [&](const nlohmann::json& line) {
    is_found = is_found || (line["event"] == "eval" && line.value("step", none) == step);
  });
  return is_found;
}

std::string last_checkpoint(const std::string& path) {
  std::string last;
  for_each_event(path, [&](const nlohmann::json& line) {
    if (line["event"] != "checkpoint" && line["event"] != "resume") return;
    if (const auto found = line.find("path"); found != line.end() && found->is_string()) {
      last = found->get<std::string>();
    }
  });
  return last;
}

nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  // A NaN's sign means nothing, and depends on the processor.
  return std::isnan(value) ? std::string("nan") : fmt::format("{}", value);
}

}  // namespace dtrain::metrics
