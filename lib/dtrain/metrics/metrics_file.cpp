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

// Follows no link, whose target would lose its content, and waits for no FIFO.
constexpr int kFlags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

[[noreturn]] void fail_with(const std::string& path, std::string_view action, int error) {
  base::fail_on_storage(base::ErrorKind::data, error,
                        fmt::format("{}: cannot be {}: {}", path, action, std::strerror(error)));
}

// status: set to that of the file.
base::Descriptor open_file(const std::string& path, AppendedFile::Start start,
                           struct stat& status) {
  using base::retry_transient;
  base::Descriptor file(
      retry_transient(path, [&] { return ::open(path.c_str(), kFlags | O_CREAT, 0666); }));
  const int reason = errno;
  if (file && retry_transient(path, [&] { return ::fstat(file.get(), &status); }) != 0) {
    fail_with(path, "examined", errno);
  }
  // A link, a FIFO without a reader, one with a reader.
  const bool is_odd = file ? S_ISFIFO(status.st_mode) : reason == ELOOP || reason == ENXIO;
  if (is_odd) {
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

enum class Line { kept, later, unreadable };

Line kind_of(std::string_view line, std::int64_t step) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Line::unreadable;
  const auto found = json.find("step");
  if (found == json.end()) return Line::kept;
  if (!found->is_number_integer()) return Line::unreadable;
  return found->get<std::int64_t>() <= step ? Line::kept : Line::later;
}

constexpr base::FileRole kRole{base::ErrorKind::data, "file", "check its permissions"};

// Empty if there is no regular file (a FIFO would not answer).
std::string text_in(const std::string& path, const std::filesystem::file_status& status) {
  return std::filesystem::is_regular_file(status) ? base::content_of(path, kRole) : std::string();
}

// Calls visit(line) for each line that has an end; a last one without was cut short. What precedes
// the line may be changed meanwhile.
template <typename Visit>
void for_each_line(const std::string& text, Visit visit) {
  std::size_t end = 0;
  for (std::size_t begin = 0; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    visit(std::string_view(text).substr(begin, end - begin));
  }
}

// Lines with an "event"; those that are no JSON are passed over, and so is a file that is none or
// that this process may not open. One that is open and cannot be read is an error, not "no events".
void for_each_event(const std::string& path,
                    const std::function<void(const nlohmann::json&)>& visit) {
  if (!std::filesystem::is_regular_file(base::path_status(path))) return;  // a FIFO never answers
  std::optional<base::InputFile> file;
  try {
    file = base::InputFile::open(path, kRole);
  } catch (const base::StorageError&) {
    throw;
  } catch (const base::Error&) {
    return;
  }
  for_each_line(base::content_of(*file), [&](std::string_view line) {
    if (line.find("\"event\"") == line.npos) return;  // a step: there are many
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("event")) visit(json);
  });
}

void cut_to(const std::string& path, off_t size, std::int64_t step) {
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
  if (!write_waiting(false)) {
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
  waiting_ += bytes;
  if (write_waiting(false)) return;
  const int reason = errno;
  if (!base::is_full_disk(reason)) {
    waiting_.clear();
    fail_with(path_, "written", reason);
  }
  if (waiting_.size() > kMaxWaitingBytes) {
    base::fail_on_storage(base::ErrorKind::data, reason,
                          fmt::format("{}: cannot be written: {}; make room and start again", path_,
                                      std::strerror(reason)));
  }
  if (!has_warned_) {
    base::log_warning("{}: cannot be written: {}; training goes on, and {} wait for room", path_,
                      std::strerror(reason), parts_);
  }
  has_warned_ = true;
}

void AppendedFile::finish() {
  if (write_waiting(true)) return;
  const int reason = errno;
  waiting_.clear();
  base::fail_on_storage(base::ErrorKind::data, reason,
                        fmt::format("{}: its last {} are lost: {}; the rest of the run is whole",
                                    path_, parts_, std::strerror(reason)));
}

// Returns whether all is written; else errno says why not.
bool AppendedFile::write_waiting(bool waits_for_room) {
  base::StorageRetry retry(path_);
  bool has_failed = false;
  while (!waiting_.empty()) {
    const ssize_t written =
        has_failed && !open_again() ? -1 : ::write(file_.get(), waiting_.data(), waiting_.size());
    has_failed = written < 0;
    if (has_failed) {
      const bool is_left = base::is_full_disk(errno) && !waits_for_room;
      if (is_left || !retry.should_retry(errno)) return false;
      continue;
    }
    size_ += written;
    waiting_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

// A stale descriptor stays stale, and a write that failed may have left a part of its bytes. The
// bytes stay with their file where the path leads to another one, or to none while its mount is
// missing.
bool AppendedFile::open_again() {
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
  std::size_t num_kept = 0;   // bytes, moved to the front of the text
  std::size_t num_first = 0;  // of them, those that come before any that are not kept
  std::int64_t num_unreadable = 0;
  bool has_later = false;
  for_each_line(text, [&](std::string_view line) {
    const Line kind = kind_of(line, step);
    has_later = has_later || kind == Line::later;
    if (kind == Line::unreadable) ++num_unreadable;
    if (kind == Line::kept && !has_later) {
      std::memmove(text.data() + num_kept, line.data(), line.size() + 1);
      num_kept += line.size() + 1;
    }
    if (num_unreadable == 0) num_first = num_kept;
  });
  // A disk without room can still cut a file short.
  if (num_first == num_kept) cut_to(path, static_cast<off_t>(num_first), step);
  if (num_unreadable > 0) {
    base::log_warning("{}: {} could not be read and {} left out", path,
                      num_unreadable == 1 ? "a line" : fmt::format("{} lines", num_unreadable),
                      num_unreadable == 1 ? "is" : "are");
  }
  if (num_first == num_kept) return;
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
