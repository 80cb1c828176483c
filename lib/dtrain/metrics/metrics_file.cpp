#include "dtrain/metrics/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/log.h"
#include "dtrain/metrics/format.h"

namespace dtrain::metrics {
namespace {

// Never follows a link, whose target would be truncated, and never blocks on a FIFO.
constexpr int kFlags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

[[noreturn]] void fail_with(const std::string& path, std::string_view action, int error) {
  base::fail_on_storage(base::ErrorKind::data, error,
                        fmt::format("{}: cannot be {}: {}", path, action, std::strerror(error)));
}

// Opens the file and sets `status`.
base::Descriptor open_file(const std::string& path, AppendedFile::Start start,
                           struct stat& status) {
  using base::retry_transient;
  base::Descriptor file(
      retry_transient(path, [&] { return ::open(path.c_str(), kFlags | O_CREAT, 0666); }));
  const int reason = errno;
  if (file && retry_transient(path, [&] { return ::fstat(file.get(), &status); }) != 0) {
    fail_with(path, "examined", errno);
  }
  // ELOOP: a link. ENXIO: a FIFO without a reader.
  const bool is_link_or_fifo = file ? S_ISFIFO(status.st_mode) : reason == ELOOP || reason == ENXIO;
  if (is_link_or_fifo) {
    base::fail(base::ErrorKind::data, "{}: cannot be written: it is a link or a FIFO; remove it",
               path);
  }
  if (!file) fail_with(path, "created", reason);
  if (start == AppendedFile::Start::appended) return file;
  if (retry_transient(path, [&] { return ::ftruncate(file.get(), 0); }) != 0) {
    fail_with(path, "emptied", errno);
  }
  status.st_size = 0;
  return file;
}

enum class Line { kept, later, invalid };

Line kind_of(std::string_view line, std::int64_t step) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Line::invalid;
  const auto found = json.find("step");
  if (found == json.end()) return Line::kept;
  if (!found->is_number_integer()) return Line::invalid;
  return found->get<std::int64_t>() <= step ? Line::kept : Line::later;
}

constexpr base::FileRole kRole{base::ErrorKind::data, "file", "check its permissions"};

// The content of a regular file, else empty: reading a FIFO would block.
std::string text_in(const std::string& path, const std::filesystem::file_status& status) {
  return std::filesystem::is_regular_file(status) ? base::content_of(path, kRole) : std::string();
}

// Calls visit(line) for each line with a newline; a last line without one is truncated. visit may
// change the text before the line.
template <typename Visit>
void for_each_line(const std::string& text, Visit visit) {
  std::size_t end = 0;
  for (std::size_t begin = 0; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    visit(std::string_view(text).substr(begin, end - begin));
  }
}

// Visits the lines with an "event". Skips lines that are not JSON, and files that are not regular or
// may not be opened. An open file that cannot be read is an error, not "no events".
void for_each_event(const std::string& path,
                    const std::function<void(const nlohmann::json&)>& visit) {
  if (!std::filesystem::is_regular_file(base::path_status(path)))
    return;  // reading a FIFO would block
  std::optional<base::InputFile> file;
  try {
    file = base::InputFile::open(path, kRole);
  } catch (const base::StorageError&) {
    throw;
  } catch (const base::Error&) {
    return;
  }
  for_each_line(base::content_of(*file), [&](std::string_view line) {
    if (line.find("\"event\"") == line.npos) return;  // a step: not parsed, since there are many
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("event")) visit(json);
  });
}

void truncate_to(const std::string& path, off_t size, std::int64_t step) {
  if (base::retry_transient(path, [&] { return ::truncate(path.c_str(), size); }) == 0) return;
  const int error = errno;
  base::fail_on_storage(
      base::ErrorKind::data, error,
      fmt::format("{}: cannot be cut back to step {}: {}", path, step, std::strerror(error)));
}

}  // namespace

AppendedFile::AppendedFile(std::string path, Start start, std::string_view parts)
    : path_(std::move(path)), start_(start), parts_(parts) {}

AppendedFile::~AppendedFile() {
  if (!write_backlog(false)) {
    base::log_warning("{}: its last {} are lost: {}", path_, parts_, std::strerror(errno));
  }
}

void AppendedFile::write(std::string_view bytes) {
  if (!file_) {
    struct stat status {};
    file_ = open_file(path_, start_, status);
    inode_ = status.st_ino;
    size_ = status.st_size;
  }
  backlog_ += bytes;
  if (write_backlog(false)) return;
  const int reason = errno;
  if (!base::is_full_disk(reason)) {
    backlog_.clear();
    fail_with(path_, "written", reason);
  }
  if (backlog_.size() > kMaxBacklogBytes) {
    base::fail_on_storage(base::ErrorKind::data, reason,
                          fmt::format("{}: cannot be written: {}; make room and start again", path_,
                                      std::strerror(reason)));
  }
  if (!has_warned_) {
    base::log_warning(
        "{}: cannot be written: {}; training continues, and {} are buffered until there is room",
        path_, std::strerror(reason), parts_);
  }
  has_warned_ = true;
}

void AppendedFile::finish() {
  if (write_backlog(true)) return;
  const int reason = errno;
  backlog_.clear();
  base::fail_on_storage(base::ErrorKind::data, reason,
                        fmt::format("{}: its last {} are lost: {}; the rest of the run is complete",
                                    path_, parts_, std::strerror(reason)));
}

// Returns true if everything is written; else errno has the reason.
bool AppendedFile::write_backlog(bool waits_for_room) {
  base::StorageRetry retry(path_);
  bool has_failed = false;
  while (!backlog_.empty()) {
    const ssize_t written =
        has_failed && !reopen() ? -1 : ::write(file_.get(), backlog_.data(), backlog_.size());
    has_failed = written < 0;
    if (has_failed) {
      const bool is_left = base::is_full_disk(errno) && !waits_for_room;
      if (is_left || !retry.should_retry(errno)) return false;
      continue;
    }
    size_ += written;
    backlog_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

// Reopens the file, since a stale descriptor stays stale, and truncates it, since a failed write may
// have left a part of its bytes. Keeps the descriptor if the path names another file, or none while
// its mount is missing.
bool AppendedFile::reopen() {
  struct stat status {};
  base::Descriptor file(::open(path_.c_str(), kFlags));
  if (file && ::fstat(file.get(), &status) == 0 && status.st_ino == inode_) {
    file_ = std::move(file);
  }
  if (::fstat(file_.get(), &status) != 0) return false;
  if (!S_ISREG(status.st_mode) || status.st_size <= size_) return true;
  return ::ftruncate(file_.get(), size_) == 0;
}

void cut_back(const std::string& path, std::int64_t step) {
  std::string text = text_in(path, base::link_status(path));
  if (text.empty()) return;
  std::size_t num_kept = 0;    // bytes, moved to the front of the text
  std::size_t num_prefix = 0;  // kept bytes before the first invalid line
  std::int64_t num_invalid = 0;
  bool has_later = false;
  for_each_line(text, [&](std::string_view line) {
    const Line kind = kind_of(line, step);
    has_later = has_later || kind == Line::later;
    if (kind == Line::invalid) ++num_invalid;
    if (kind == Line::kept && !has_later) {
      std::memmove(text.data() + num_kept, line.data(), line.size() + 1);
      num_kept += line.size() + 1;
    }
    if (num_invalid == 0) num_prefix = num_kept;
  });
  // Truncating works on a full disk, too.
  if (num_prefix == num_kept) truncate_to(path, static_cast<off_t>(num_prefix), step);
  if (num_invalid > 0) {
    base::log_warning("{}: {} could not be read and {} left out", path,
                      num_invalid == 1 ? "a line" : fmt::format("{} lines", num_invalid),
                      num_invalid == 1 ? "is" : "are");
  }
  if (num_prefix == num_kept) return;
  base::write_atomically(path, base::ErrorKind::data, std::string_view(text).substr(0, num_kept));
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
  return format_number(value);
}

}  // namespace dtrain::metrics
