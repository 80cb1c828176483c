#include "dtrain/metrics/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"

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
      fd_(::open(path_.c_str(),
                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (start == Start::empty ? O_TRUNC : 0),
                 0666)) {
  if (fd_ < 0) {
    base::fail(base::ErrorKind::data, "{}: cannot be created: {}", path_, std::strerror(errno));
  }
}

MetricsFile::~MetricsFile() {
  if (!write_waiting()) {
    base::log_warning("{}: its last lines are lost: {}", path_, std::strerror(errno));
  }
  ::close(fd_);
}

void MetricsFile::write(const nlohmann::ordered_json& line) {
  waiting_ += line.dump() + "\n";
  if (write_waiting()) return;
  const int reason = errno;
  if ((reason != ENOSPC && reason != EDQUOT) || waiting_.size() > kMaxWaitingBytes) {
    base::fail(base::ErrorKind::data, "{}: cannot be written: {}; make room and start again", path_,
               std::strerror(reason));
  }
  if (!has_warned_) {
    base::log_warning("{}: cannot be written: {}; training goes on, and lines wait for room", path_,
                      std::strerror(reason));
  }
  has_warned_ = true;
}

// Whether all is written; else errno tells why not.
bool MetricsFile::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t written = ::write(fd_, waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    waiting_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
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

bool has_evaluation(const std::string& path, std::int64_t step) {
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    const nlohmann::json none;
    if (json.value("event", none) == "eval" && json.value("step", none) == step) return true;
  }
  return false;
}

nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  // A NaN's sign means nothing, and depends on the processor.
  return std::isnan(value) ? std::string("nan") : fmt::format("{}", value);
}

}  // namespace dtrain::metrics
