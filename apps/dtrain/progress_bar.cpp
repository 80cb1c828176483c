#include "progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "dtrain/base/readable.h"

namespace dtrain::app {
namespace {

// A terminal that went away is no error.
void draw(std::string_view text) {
  const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
  (void)ignored;
}

}  // namespace

std::string progress_text(std::int64_t bytes, std::int64_t total_bytes, double seconds,
                          std::string_view note) {
  constexpr int kWidth = 24;
  const bool is_large = total_bytes >= 1'000'000;
  const double unit = is_large ? 1e6 : 1e3;
  const std::string_view name = is_large ? "MB" : "kB";
  const double share =
      total_bytes > 0 ? std::min(1.0, static_cast<double>(bytes) / double(total_bytes)) : 0;
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total_bytes - bytes) / rate : 0;
  const std::string bar(static_cast<std::size_t>(share * kWidth), '#');
  return fmt::format("[{:<{}}] {:3.0f} %  {:.0f} of {:.0f} {}  {:.0f} {}/s  {} left  {}", bar,
                     kWidth, 100 * share, double(bytes) / unit, double(total_bytes) / unit, name,
                     rate / unit, name, base::readable_time(std::max(0.0, left)), note);
}

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
  draw("\r\x1b[K" + progress_text(bytes, total_bytes, now, note));
}

}  // namespace dtrain::app
