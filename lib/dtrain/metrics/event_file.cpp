#include "dtrain/metrics/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/file_system.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/storage_error.h"

namespace dtrain::metrics {
namespace {

namespace fs = std::filesystem;

// TensorBoard looks for files with this in their names, and reads them in the order of their names.
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kOurs = ".dtrain";  // the end of our names

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// None if the folder may not be listed.
std::vector<std::string> our_files(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names = base::names_in(folder, error);
  if (base::may_pass(error.value())) {
    throw base::StorageError(fmt::format("{}: cannot be listed: {}", folder, error.message()),
                             error.value());
  }
  std::erase_if(names, [](const std::string& name) {
    return !name.starts_with(kPrefix) || !name.ends_with(kOurs);
  });
  return names;
}

// The time in the name of an event file, in seconds; 0 where there is none.
std::int64_t time_in(std::string_view name) {
  name.remove_prefix(kPrefix.size());
  std::int64_t seconds = 0;
  std::from_chars(name.data(), name.data() + name.size(), seconds);
  return seconds;
}

// A name behind those of earlier starts, even where a clock was set back.
std::string new_name(const std::string& folder) {
  auto seconds = static_cast<std::int64_t>(wall_seconds());
  for (const std::string& name : our_files(folder)) seconds = std::max(seconds, time_in(name) + 1);
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  return fmt::format("{}{:010}.{}.{}{}", kPrefix, seconds, host.data(), ::getpid(), kOurs);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  (void)base::with_patience(folder, [&] {
    fs::create_directories(folder, error);
    errno = error.value();
    return error ? -1 : 0;
  });
  if (!error) return;
  base::fail_on_storage(base::ErrorKind::data, error.value(),
                        fmt::format("{}: cannot be created: {}; move it away, or --tensorboard off",
                                    folder, error.message()));
}

}  // namespace

EventFile::EventFile(std::string folder, std::int64_t first_step)
    : folder_(std::move(folder)), first_step_(first_step) {}

void EventFile::write(const std::string& record) {
  std::string bytes;
  if (!file_) {
    make_folder(folder_);
    file_ = std::make_unique<AppendedFile>(folder_ + "/" + new_name(folder_),
                                           AppendedFile::Start::empty, "records");
    const double now = wall_seconds();
    bytes = version_record(now) + start_record({.wall_seconds = now, .step = first_step_});
  }
  file_->write(bytes + record);
}

void EventFile::scalars(std::int64_t step, std::span<const Scalar> scalars) {
  write(scalars_record({.wall_seconds = wall_seconds(), .step = step}, scalars));
}

// In Markdown, lines that begin with four blanks are shown as they are.
void EventFile::text(std::int64_t step, std::string_view tag, std::string_view text) {
  constexpr std::string_view kIndent = "    ";
  std::string shown(kIndent);
  for (const char c : text) {
    shown += c;
    if (c == '\n') shown += kIndent;
  }
  write(text_record({.wall_seconds = wall_seconds(), .step = step}, tag, shown));
}

void EventFile::finish() {
  if (file_) file_->finish();
}

void remove_event_files(const std::string& folder) {
  if (!fs::is_directory(base::link_status(folder))) return;  // a link leads elsewhere
  base::Disk disk(base::ErrorKind::data);
  for (const std::string& name : our_files(folder)) disk.remove_file(folder + "/" + name);
  std::error_code error;
  fs::remove(folder, error);  // fails where files of others are
}

}  // namespace dtrain::metrics
