// Writes to one descriptor from a thread of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace launcher {

/// A write to a terminal, or to a pipe that others write into too, may block however short it is
/// and whatever poll says. Here only this object's thread waits for the reader. Making the
/// descriptor non-blocking instead would do so for the user's shell as well.
///
/// Threads: one caller. A thread that waits for a reader is left behind by the destructor.
class OutputWriter {
 public:
  /// `wake` is written to (an eventfd) whenever something was written or dropped.
  ///
  /// Throws: Error{spawn} when no thread can be made.
  OutputWriter(int fd, int wake);
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;
  ~OutputWriter();

  /// Queues the bytes; never waits.
  void write(std::string bytes);
  /// Bytes that are not written yet.
  [[nodiscard]] std::size_t waiting() const;
  /// Whether nobody can read any more; what is queued from then on is dropped.
  [[nodiscard]] bool closed() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace launcher
