#include "dtrain/metrics/metrics_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::metrics {

namespace {

// Whether the line is whole and tells of no step after `step`.
bool is_kept(const std::string& line, std::int64_t step) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto found = json.find("step");
  return found == json.end() || (found->is_number_integer() && found->get<std::int64_t>() <= step);
}

}  // namespace

MetricsFile::MetricsFile(std::string path, Start start)
    : path_(std::move(path)),
      file_(std::fopen(path_.c_str(), start == Start::empty ? "we" : "ae")) {
  if (file_ == nullptr) {
    base::fail(base::ErrorKind::data, "{}: cannot be created: {}", path_, std::strerror(errno));
  }
}

void MetricsFile::write(const nlohmann::ordered_json& line) {
  const std::string text = line.dump() + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                       std::fflush(file_.get()) == 0;
  if (!written) {
    base::fail(base::ErrorKind::data, "{}: cannot be written: {}; make room and start again", path_,
               std::strerror(errno));
  }
}

void cut_back(const std::string& path, std::int64_t step) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  std::ifstream file(path, std::ios::binary);
  std::uintmax_t kept_bytes = 0;
  std::string line;
  // A last line without its end is read as one, but was cut short.
  while (std::getline(file, line) && !file.eof() && is_kept(line, step)) {
    kept_bytes += line.size() + 1;
  }
  if (!file.bad()) std::filesystem::resize_file(path, kept_bytes, error);
  if (file.bad() || error) {
    base::fail(base::ErrorKind::data, "{}: cannot be cut back to step {}: {}", path, step,
               error ? error.message() : "it cannot be read");
  }
}

nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  // A NaN's sign means nothing, and depends on the processor.
  return std::isnan(value) ? std::string("nan") : fmt::format("{}", value);
}

}  // namespace dtrain::metrics
