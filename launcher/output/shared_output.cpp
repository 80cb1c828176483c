#include "launcher/output/shared_output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace launcher {
namespace {

constexpr std::string_view kClearLine = "\r\033[J";

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// The longest prefix that fits in `columns`, counted in UTF-8 characters.
std::string_view fitted(std::string_view text, std::size_t columns) {
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool begins_character = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins_character && ++characters > columns) return text.substr(0, at);
  }
  return text;
}

}  // namespace

SharedOutput::SharedOutput(std::string own_prefix, Pieces pieces)
    : own_prefix_(std::move(own_prefix)),
      error_("standard error", STDERR_FILENO, waker_, pieces),
      terminal_(::isatty(STDERR_FILENO) == 1) {
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) {
    error_.name = "standard output and error";
  } else {
    output_.emplace("standard output", STDOUT_FILENO, waker_, pieces);
  }
}

int SharedOutput::columns() const {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void SharedOutput::hide_live() {
  if (!live_shown_) return;
  error_.pending += kClearLine;
  live_shown_ = false;
}

void SharedOutput::line(Stream stream, std::string_view prefix, std::string_view text) {
  Sink& sink = sink_of(stream);
  if (sink.writer.closed()) return;
  if (limit_ && pending_for_readers() > *limit_) {
    ++lines_dropped_;
    return;
  }
  if (!has_room(sink)) return;
  if (&sink == &error_) hide_live();
  sink.pending.append(prefix).append(text).append("\n");
}

/// Returns whether the line may wait for a full disk; counts a line that may not.
bool SharedOutput::has_room(Sink& sink) {
  constexpr std::size_t kMaxWaitingBytes = std::size_t{1} << 20;
  const int reason = sink.writer.full_reason();
  if (reason == 0 || sink.bytes() < kMaxWaitingBytes) return true;
  sink.lost_reason = reason;
  if (++sink.lines_lost == 1) {
    warn(fmt::format("{} cannot be written: {}; until it can, lines are dropped", sink.name,
                     std::strerror(reason)));
  }
  return false;
}

/// Reports how many lines were dropped, once the disk takes others again or was given up.
void SharedOutput::report_losses(Sink& sink) {
  const std::int64_t given_up = sink.writer.take_lines_lost();
  const int reason = sink.writer.full_reason();
  if (given_up > 0) sink.lost_reason = reason;
  sink.lines_lost += given_up;
  if (sink.lines_lost == 0 || (reason != 0 && !sink.writer.closed())) return;
  warn(fmt::format("{} lines of {} were dropped: {}", std::exchange(sink.lines_lost, 0), sink.name,
                   std::strerror(sink.lost_reason)));
}

/// Adds a line to standard error even while other lines are dropped.
void SharedOutput::warn(std::string_view text) {
  if (error_.writer.closed()) return;
  hide_live();
  error_.pending.append(own_prefix_).append("warning: ").append(text).append("\n");
}

void SharedOutput::live(std::string_view text) {
  hide_live();
  live_ = text;
}

void SharedOutput::redraw() { hide_live(); }

void SharedOutput::commit_live(std::string_view prefix) {
  if (live_.empty()) return;
  hide_live();
  const std::string text = std::exchange(live_, {});
  line(Stream::error, prefix, text);
}

void SharedOutput::flush() {
  if (output_) report_losses(*output_);
  report_losses(error_);
  // While earlier bytes are queued, a newer text may still replace this one.
  if (!live_.empty() && !live_shown_ && error_.writer.waiting() == 0 && !error_.writer.closed()) {
    const auto width = static_cast<std::size_t>(columns());
    error_.pending.append(kClearLine).append(fitted(live_, width - 1)).append("\r");
    live_shown_ = true;
  }
  error_.writer.write(std::exchange(error_.pending, {}));
  if (output_) output_->writer.write(std::exchange(output_->pending, {}));
}

void SharedOutput::finish(std::chrono::duration<double> patience) {
  error_.writer.finish(patience);
  if (output_) output_->writer.finish(patience);
}

std::size_t SharedOutput::pending() const {
  return error_.bytes() + (output_ ? output_->bytes() : 0);
}

std::size_t SharedOutput::pending_for_readers() const {
  const auto bytes_of = [](const Sink& sink) {
    return sink.writer.full_reason() == 0 ? sink.bytes() : 0;
  };
  return bytes_of(error_) + (output_ ? bytes_of(*output_) : 0);
}

}  // namespace launcher
