// Writes the ranks' log files from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/descriptor.h"
#include "launcher/output/output_writer.h"

namespace launcher {

class LogWriter;

/// An open log file.
struct LogFile {
  std::string path = {};
  dtrain::base::Descriptor descriptor = {};

  /// Creates an empty file at `path`. Returns false, with errno set, if that fails.
  [[nodiscard]] bool create();
};

/// One log of a LogWriter. A default-constructed one drops its bytes. Must not outlive the writer.
class Log {
 public:
  Log() = default;

  /// Queues the bytes; never blocks.
  void write(std::string_view bytes) const;

 private:
  friend class LogWriter;
  Log(LogWriter& writer, std::size_t index) : writer_(&writer), index_(index) {}

  LogWriter* writer_ = nullptr;
  std::size_t index_ = 0;
};

/// Queues the bytes of all logs, and writes them from its own thread, each log in order, so that a
/// hanging disk (NFS, a frozen file system) does not block the supervisor.
///
/// A file that reaches size_limit is renamed to FILE.1, which it replaces, and the log continues in
/// a new FILE. If that fails, prints one warning and tries again after another size_limit bytes.
///
/// A full disk (or a quota, or a limit on file sizes) leaves a gap in the log; later bytes are
/// written if there is space again. Any other error, including a stale file, ends the log. Both
/// cause warnings.
///
/// Threads: one caller. A thread that hangs is left behind by the destructor.
class LogWriter {
 public:
  /// `waker` is woken whenever something was written or lost. size_limit: bytes of each file; 0:
  /// none.
  LogWriter(std::shared_ptr<const Waker> waker, std::int64_t size_limit);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter();

  /// Adds a log that is written to `file`; `name` is for warnings.
  ///
  /// Throws: Error{spawn} if the thread cannot be started, at the first file.
  [[nodiscard]] Log add(LogFile file, std::string name);

  /// Adds to the warnings.
  void warn(std::string text);

  /// From now on drops bytes, as for a full disk, while more than `limit` are queued.
  void drop_beyond(std::size_t limit);
  /// No more bytes follow: closes each file once its queue is written.
  void finish();

  /// Bytes that are not written yet.
  [[nodiscard]] std::size_t waiting() const;
  /// The bytes that are not written yet, and the dropped ones that no warning has counted yet.
  [[nodiscard]] std::size_t missing() const;
  /// Returns whether the thread has nothing to do; after finish(): whether all files are closed.
  [[nodiscard]] bool idle() const;
  /// Returns the warnings since the last call, one line each.
  [[nodiscard]] std::vector<std::string> take_warnings();

 private:
  friend class Log;
  struct State;

  void write(std::size_t index, std::string_view bytes);

  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace launcher
