// Writes output in a separate thread, so that a slow reader or disk does not block the caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "dtrain/base/io/descriptor.h"

namespace launcher {

/// Runs `body` in a detached thread. A write may block forever and the thread may outlive the
/// caller, so `body` must own all objects that it uses.
///
/// Throws: Error{spawn} if the thread cannot be started.
void start_writer_thread(std::function<void()> body);

/// The size of a write. atomic: whole lines of at most PIPE_BUF bytes, so that those of other
/// writers do not interleave.
enum class Pieces { large, atomic };

/// Writes a piece from the front of `rest` and removes what was written.
///
/// Returns: 0, or the errno.
[[nodiscard]] int write_piece(int fd, std::string_view& rest, Pieces pieces = Pieces::large);

/// An eventfd that threads make readable to wake the supervisor.
class Waker {
 public:
  Waker();

  [[nodiscard]] int fd() const { return fd_.get(); }
  void wake() const;
  /// Makes it unreadable again.
  void clear() const;

 private:
  dtrain::base::Descriptor fd_;
};

/// Writes from a separate thread, so that only this thread blocks on the reader. A write to a
/// terminal, or to a pipe with other writers, may block however short it is and whatever poll()
/// reports; a non-blocking descriptor would be non-blocking for the user's shell as well.
///
/// Retries while a disk is full (or a quota, or a limit on file sizes is reached): space may be
/// freed.
///
/// Threads: one caller. A thread that waits for a reader is left behind by the destructor.
class OutputWriter {
 public:
  /// `waker` is woken whenever something was written or dropped.
  ///
  /// pieces: atomic if other processes write lines to the same pipe.
  /// Throws: Error{spawn} if the thread cannot be started.
  OutputWriter(int fd, std::shared_ptr<const Waker> waker, Pieces pieces = Pieces::large);
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;
  ~OutputWriter();

  /// Queues the bytes; never blocks.
  void write(std::string bytes);
  /// Bytes that are not written yet.
  [[nodiscard]] std::size_t waiting() const;
  /// Returns whether the descriptor is broken, so that later lines are dropped.
  [[nodiscard]] bool closed() const;
  /// Why the last write failed for lack of space: ENOSPC, EDQUOT or EFBIG; 0: it did not.
  [[nodiscard]] int full_reason() const;
  /// From now on waits at most `patience` for space on a full disk.
  void finish(std::chrono::duration<double> patience);
  /// The number of lines dropped since the last call.
  [[nodiscard]] std::int64_t take_lines_lost();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
};

/// Writes the text to standard error while no ranks run. Gives up after 1 s, since a terminal
/// without a reader must not block the supervisor.
void write_error_for_a_while(const std::string& text);

}  // namespace launcher
