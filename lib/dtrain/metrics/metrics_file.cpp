#include "dtrain/metrics/metrics_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::metrics {

MetricsFile::MetricsFile(std::string path)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), "we")) {
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

nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  // A NaN's sign means nothing, and depends on the processor.
  return std::isnan(value) ? std::string("nan") : fmt::format("{}", value);
}

}  // namespace dtrain::metrics
