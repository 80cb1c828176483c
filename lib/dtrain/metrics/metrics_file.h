// Append-only files of a run: RUN/metrics.jsonl, with one JSON object per line, and event files.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/base/io/descriptor.h"

namespace dtrain::metrics {

/// A file that is only appended to. The first write opens it, so that a run that fails to start
/// leaves an older file unchanged.
///
/// A full disk does not end the run, because pruning a checkpoint may free space soon. The backlog
/// stays in memory until there is space. One warning reports the backlog; the destructor warns of
/// lost bytes. A write that fails transiently is retried after the file was truncated to its known
/// size, so no bytes are duplicated.
///
/// Throws:  Error{data} naming the file if it cannot be opened or written, or is a link or a FIFO;
///          StorageError if the storage does not respond or has no room for the file, or if the
///          backlog exceeds kMaxBacklogBytes.
/// Threads: one caller.
class AppendedFile {
 public:
  static constexpr std::size_t kMaxBacklogBytes = std::size_t{1} << 24;

  enum class Start {
    empty,    ///< an existing file is truncated
    appended  ///< bytes are appended to an existing file
  };
  /// parts: what the file consists of, for messages: "lines".
  AppendedFile(std::string path, Start start, std::string_view parts);
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  ~AppendedFile();

  /// Appends the bytes. On return they are written to the file if the disk has space.
  void write(std::string_view bytes);
  /// Appends a line of JSON. Numbers keep every bit; non-finite numbers must be converted to texts
  /// by json_number(). Invalid UTF-8, as in a path within a message, is replaced.
  void write_line(const nlohmann::ordered_json& line) {
    write(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  /// Ends the file; waits a while for disk space if there is a backlog.
  ///
  /// Throws: as write; also if there is still no space, so that the backlog is lost.
  void finish();

 private:
  [[nodiscard]] bool write_backlog(bool waits_for_room);
  [[nodiscard]] bool reopen();

  std::string path_;
  Start start_;
  std::string_view parts_;
  base::Descriptor file_;    // opened by the first write
  std::string backlog_;      // bytes that are not written yet
  ino_t inode_ = 0;          // the file's inode
  off_t size_ = 0;           // written bytes
  bool has_warned_ = false;  // the warning of the backlog was printed
};

/// Truncates the file at the first line of a step after `step`, because a run that resumes from
/// `step` writes these lines again. Also removes lines that cannot be parsed, with a warning, and a
/// truncated last line. No-op if the file does not exist.
///
/// Throws: Error{data} naming the file if it cannot be read or written.
void cut_back(const std::string& path, std::int64_t step);

/// True if the file has an "eval" line of this step; false if the file is permanently unreadable.
[[nodiscard]] bool has_evaluation(const std::string& path, std::int64_t step);

/// Returns the path of the latest checkpoint that was committed or resumed from according to the
/// file; empty if there is none. Skips lines that cannot be parsed.
[[nodiscard]] std::string last_checkpoint(const std::string& path);

/// A number as in metrics.jsonl: the text "nan", "inf" or "-inf" if it is not finite.
[[nodiscard]] nlohmann::ordered_json json_number(double value);

}  // namespace dtrain::metrics
