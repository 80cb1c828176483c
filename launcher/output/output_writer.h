// Writes to one descriptor from a thread of its own; and the parts that such threads share.
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

/// Runs `body` in a thread that nobody waits for: it may hang in the kernel, so what it uses must
/// live as long as it does.
///
/// Throws: Error{spawn} when no thread can be made.
void start_writer_thread(std::function<void()> body);

/// The most that is written at once; with `atomic`, whole lines in as many bytes as a pipe takes
/// without letting another writer's between them.
enum class Pieces { large, atomic };

/// Writes a piece from the front of `rest` and takes off what was written.
///
/// Returns: 0, or why nothing could be written.
[[nodiscard]] int write_piece(int fd, std::string_view& rest, Pieces pieces = Pieces::large);

/// An eventfd that threads make readable to wake the supervisor.
class Waker {
 public:
  Waker();

  [[nodiscard]] int fd() const { return fd_.get(); }
  void wake() const;
  /// Takes what has come, so that it is not readable any more.
  void rest() const;

 private:
  dtrain::base::Descriptor fd_;
};

/// A write to a terminal, or to a pipe that others write into too, may block however short it is
/// and whatever poll says. Here only this object's thread waits for the reader. Making the
/// descriptor non-blocking instead would do so for the user's shell as well.
///
/// A disk without room (or a quota, or a limit on file sizes) is tried again until it takes what is
/// queued: somebody may make room.
///
/// Threads: one caller. A thread that waits for a reader is left behind by the destructor.
class OutputWriter {
 public:
  /// `waker` is woken whenever something was written or dropped.
  ///
  /// pieces: atomic where other processes write lines to the same pipe.
  /// Throws: Error{spawn} when no thread can be made.
  OutputWriter(int fd, std::shared_ptr<const Waker> waker, Pieces pieces = Pieces::large);
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;
  ~OutputWriter();

  /// Queues the bytes; never waits.
  void write(std::string bytes);
  /// Bytes that are not written yet.
  [[nodiscard]] std::size_t waiting() const;
  /// Returns whether nothing can be written any more; later lines are dropped.
  [[nodiscard]] bool closed() const;
  /// Why the disk takes nothing at present: ENOSPC, EDQUOT or EFBIG; 0: it does.
  [[nodiscard]] int full_reason() const;
  /// From now on a disk without room is waited for until `patience` has passed, and then given up.
  void finish(std::chrono::duration<double> patience);
  /// Lines that were given up since the last call.
  [[nodiscard]] std::int64_t take_lines_lost();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
};

/// Writes the text to standard error while no ranks run; gives up after 1 s, since a terminal that
/// nobody reads must not keep the supervisor.
void write_error_for_a_while(const std::string& text);

}  // namespace launcher
