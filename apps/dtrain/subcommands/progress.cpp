#include "subcommands/progress.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <string>

#include "dtrain/base/host/process.h"
#include "dtrain/base/text/text.h"

namespace dtrain::app {
namespace {

// Ignores errors, since the terminal may be closed.
void draw(std::string_view text) {
  const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
  (void)ignored;
}

// Usable columns: one less than the width, where the cursor would wrap. Queried at each redraw, since
// windows are resized.
std::size_t columns_of_terminal() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return (is_known ? size.ws_col : kUsual) - 1;
}

// The first line that fits into `columns`, or else a prefix of the last.
template <typename Lines>
std::string fitting(const Lines& lines, std::size_t columns) {
  for (const std::string& line : lines) {
    if (line.size() <= columns) return line;
  }
  return std::end(lines)[-1].substr(0, columns);
}

// "[#####     ]  50 %  100 of 200 MB  20 MB/s  5.0 s left  NOTE", shortened to `columns` by dropping
// the note, then the speed, the bytes and the bar. If the total is unknown: bytes, speed and note.
std::string progress_text(std::int64_t bytes, std::int64_t total_bytes, double seconds,
                          std::string_view note, std::size_t columns) {
  constexpr int kWidth = 24;
  const bool is_large = std::max(bytes, total_bytes) >= 1'000'000;
  const double unit = is_large ? 1e6 : 1e3;
  const std::string_view name = is_large ? "MB" : "kB";
  const double share =
      total_bytes > 0 ? std::min(1.0, static_cast<double>(bytes) / double(total_bytes)) : 0;
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total_bytes - bytes) / rate : 0;
  const std::string speed = fmt::format("{:.0f} {}/s", rate / unit, name);
  if (total_bytes == 0) {
    const std::string read = fmt::format("{:.0f} {}", double(bytes) / unit, name);
    return fitting(std::array{fmt::format("{}  {}  {}", read, speed, note), read}, columns);
  }
  const std::string bar(static_cast<std::size_t>(share * kWidth), '#');
  const std::string drawn = fmt::format("[{:<{}}]", bar, kWidth);
  const std::string percent = fmt::format("{:3.0f} %", 100 * share);
  const std::string sizes =
      fmt::format("{:.0f} of {:.0f} {}", double(bytes) / unit, double(total_bytes) / unit, name);
  const std::string time = fmt::format("{} left", base::readable_time(std::max(0.0, left)));
  const std::string lines[] = {
      fmt::format("{} {}  {}  {}  {}  {}", drawn, percent, sizes, speed, time, note),
      fmt::format("{} {}  {}  {}  {}", drawn, percent, sizes, speed, time),
      fmt::format("{} {}  {}  {}", drawn, percent, sizes, time),
      fmt::format("{} {}  {}", drawn, percent, time),
      fmt::format("{}  {}", percent, time),
      percent};
  return fitting(lines, columns);
}

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

// The first stop signal; 0: none. Global, since a signal handler has no other state.
std::atomic<int> noted = 0;
static_assert(decltype(noted)::is_always_lock_free, "a signal handler must not take locks");

std::array<struct sigaction, kSignals.size()> previous{};

void note(int signal) {
  if (noted.exchange(signal) != 0) base::end_by_stop_signal(signal);
}

}  // namespace

ProgressBar::ProgressBar()
    : is_on_terminal_(::isatty(STDERR_FILENO) == 1), begin_(base::Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) draw("\r\x1b[K");
}

void ProgressBar::show(std::int64_t bytes, std::int64_t total_bytes, std::string_view note) {
  constexpr double kSecondsBetween = 0.1;
  const double now = base::seconds_since(begin_);
  if (!is_on_terminal_ || (is_drawn_ && now - last_ < kSecondsBetween)) return;
  last_ = now;
  is_drawn_ = true;
  draw("\r\x1b[K" + progress_text(bytes, total_bytes, now, note, columns_of_terminal()));
}

StopSignals::StopSignals() {
  noted = 0;
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    ::sigaction(kSignals[index], nullptr, &previous[index]);
    if (previous[index].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[index], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    ::sigaction(kSignals[index], &previous[index], nullptr);
  }
}

void StopSignals::check() {
  if (noted != 0) throw Stopped{noted};
}

}  // namespace dtrain::app
