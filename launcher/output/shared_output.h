// Writes lines of dtrun and of all ranks to dtrun's standard output and error.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/output/live_line.h"
#include "launcher/output/output_writer.h"

namespace launcher {

/// Standard output or error; the value is the file descriptor.
enum class Stream : int { output = 1, error = 2 };

/// Never blocks on a reader: threads write the lines. After a broken pipe, drops lines: the job
/// continues without a reader. While a disk is full, keeps 1 MiB of lines, drops the others, and
/// reports their number on standard error. A terminal may have a live line at its bottom.
///
/// Threads: one.
class SharedOutput {
 public:
  /// Throws: Error{spawn} if its threads cannot be started.
  /// pieces: as for OutputWriter.
  explicit SharedOutput(std::string own_prefix, Pieces pieces = Pieces::large);

  /// The prefix of dtrun's own lines.
  [[nodiscard]] const std::string& own_prefix() const { return own_prefix_; }

  void line(Stream stream, std::string_view prefix, std::string_view text);
  /// Replaces the live line; empty: none.
  void live(std::string_view text);
  /// Draws the live line again, in the width that the terminal has now.
  void redraw();
  /// Makes the live line an ordinary one. Returns whether there was one.
  bool commit_live(std::string_view prefix);

  /// From now on drops and counts lines while `limit` bytes are waiting.
  void drop_beyond(std::size_t limit) { limit_ = limit; }
  [[nodiscard]] std::int64_t lines_dropped() const { return lines_dropped_; }

  /// Hands everything to the writers.
  void flush();
  /// From now on waits at most `patience` for space on a full disk.
  void finish(std::chrono::duration<double> patience);
  /// Bytes that are not written yet.
  [[nodiscard]] std::size_t pending() const;
  /// The pending bytes that wait for a reader rather than for disk space.
  [[nodiscard]] std::size_t pending_for_readers() const;
  /// Woken when bytes were written.
  [[nodiscard]] const std::shared_ptr<const Waker>& waker() const { return waker_; }

 private:
  struct Sink {
    std::string_view name;
    std::string pending;
    OutputWriter writer;
    std::int64_t lines_lost = 0;  // dropped for lack of space, not reported yet
    int lost_reason = 0;

    Sink(std::string_view words, int fd, std::shared_ptr<const Waker> waker, Pieces pieces)
        : name(words), writer(fd, std::move(waker), pieces) {}
    [[nodiscard]] std::size_t bytes() const { return pending.size() + writer.waiting(); }
  };

  [[nodiscard]] Sink& sink_of(Stream stream) {
    return stream == Stream::output && output_ ? *output_ : error_;
  }
  [[nodiscard]] bool has_room(Sink& sink);
  void report_losses(Sink& sink);
  void warn(std::string_view text);

  std::string own_prefix_;
  std::shared_ptr<const Waker> waker_ = std::make_shared<Waker>();
  Sink error_;
  std::optional<Sink> output_;  // none if both are one file: a single queue keeps the order
  LiveLine live_;
  std::optional<std::size_t> limit_;
  std::int64_t lines_dropped_ = 0;
};

}  // namespace launcher
