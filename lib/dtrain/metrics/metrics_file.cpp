#include "dtrain/metrics/metrics_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/file_system.h"
#include "dtrain/base/input_file.h"
#include "dtrain/base/log.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"

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

constexpr base::FileRole kRole{base::ErrorKind::data, "file", "check its permissions"};

/// Reads a file's lines that have an end; a last one without was cut short.
class Lines {
 public:
  explicit Lines(const std::string& path) : file_(base::InputFile::open(path, kRole)) {}

  /// Returns false after the last one.
  bool next(std::string& line) {
    std::size_t end = text_.find('\n', begin_);
    while (end == std::string::npos) {
      const std::size_t searched = text_.size() - begin_;
      if (!read_on()) return false;
      end = text_.find('\n', searched);
    }
    line.assign(text_, begin_, end - begin_);
    begin_ = end + 1;
    return true;
  }

 private:
  // Returns false at the file's end.
  bool read_on() {
    constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
    const std::int64_t size = std::min(kChunkBytes, file_.size() - offset_);
    text_.erase(0, begin_);
    begin_ = 0;
    if (size == 0) return false;
    const std::size_t kept = text_.size();
    text_.resize(kept + static_cast<std::size_t>(size));
    file_.read(offset_, std::as_writable_bytes(std::span(text_)).subspan(kept));
    offset_ += size;
    return true;
  }

  base::InputFile file_;
  std::int64_t offset_ = 0;
  std::string text_;
  std::size_t begin_ = 0;  // in text_, of the next line
};

// Nothing if there is no regular file (a FIFO would not answer), or an empty one.
std::optional<Lines> lines_of(const std::string& path, const std::filesystem::file_status& status) {
  if (!std::filesystem::is_regular_file(status)) return std::nullopt;
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0 && !error) return std::nullopt;
  return Lines(path);
}

// Lines with an "event"; those that cannot be read are passed over.
void for_each_event(const std::string& path,
                    const std::function<void(const nlohmann::json&)>& visit) {
  std::optional<Lines> lines;
  try {
    lines = lines_of(path, base::path_status(path));
  } catch (const base::StorageError&) {
    throw;
  } catch (const base::Error&) {
    return;
  }
  for (std::string line; lines && lines->next(line);) {
    if (line.find("\"event\"") == std::string::npos) continue;  // a step: there are many
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("event")) visit(json);
  }
}

void cut_to(const std::string& path, off_t size, std::int64_t step) {
  if (base::with_patience(path, [&] { return ::truncate(path.c_str(), size); }) == 0) return;
  const int error = errno;
  base::fail_on_storage(
      base::ErrorKind::data, error,
      fmt::format("{}: cannot be cut back to step {}: {}", path, step, std::strerror(error)));
}

}  // namespace

void cut_back(const std::string& path, std::int64_t step) {
  std::optional<Lines> lines = lines_of(path, base::link_status(path));
  if (!lines) return;
  std::string kept;
  std::uintmax_t num_first = 0;  // bytes that are kept and come before any that are not
  std::int64_t num_unreadable = 0;
  bool has_later = false;
  for (std::string line; lines->next(line);) {
    const Line kind = kind_of(line, step);
    has_later = has_later || kind == Line::later;
    if (kind == Line::unreadable) ++num_unreadable;
    if (kind == Line::kept && !has_later) kept += line + "\n";
    if (num_unreadable == 0) num_first = kept.size();
  }
  // A disk without room can still cut a file short.
  if (num_first == kept.size()) cut_to(path, static_cast<off_t>(num_first), step);
  if (num_unreadable > 0) {
    base::log_warning("{}: {} could not be read and {} left out", path,
                      num_unreadable == 1 ? "a line" : fmt::format("{} lines", num_unreadable),
                      num_unreadable == 1 ? "is" : "are");
  }
  if (num_first == kept.size()) return;
  base::write_atomically(path, base::ErrorKind::data, kept);
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
