#include "launcher/output/shared_output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace launcher {
namespace {

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

SharedOutput::SharedOutput(std::string own_prefix, Pieces pieces)
    : own_prefix_(std::move(own_prefix)), error_("standard error", STDERR_FILENO, waker_, pieces) {
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) {
    error_.name = "standard output and error";
  } else {
    output_.emplace("standard output", STDOUT_FILENO, waker_, pieces);
  }
}

void SharedOutput::line(Stream stream, std::string_view prefix, std::string_view text) {
  Sink& sink = sink_of(stream);
  if (sink.writer.closed()) return;
  if (limit_ && pending_for_readers() > *limit_) {
    ++lines_dropped_;
    return;
  }
  if (!has_room(sink)) return;
  if (&sink == &error_) live_.clear(sink.pending);
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
  live_.clear(error_.pending);
  error_.pending.append(own_prefix_).append("warning: ").append(text).append("\n");
}

void SharedOutput::live(std::string_view text) { live_.set(text, error_.pending); }

void SharedOutput::redraw() { live_.clear(error_.pending); }

bool SharedOutput::commit_live(std::string_view prefix) {
  if (live_.empty()) return false;
  line(Stream::error, prefix, live_.take(error_.pending));
  return true;
}

void SharedOutput::flush() {
  if (output_) report_losses(*output_);
  report_losses(error_);
  // While earlier bytes are queued, a newer text may still replace this one.
  if (error_.writer.waiting() == 0 && !error_.writer.closed()) live_.draw(error_.pending);
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
