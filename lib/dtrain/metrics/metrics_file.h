// Files that grow while a run lasts: RUN/metrics.jsonl, one JSON object a line, and event files.
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

/// The first write opens the file, so that a run that does not begin leaves an older one as it is.
///
/// A disk without room ends no run: a checkpoint may have filled it, and be removed again soon.
/// What cannot be written waits in memory until there is room; a warning tells so, and at
/// destruction what is lost. Writes that fail in passing are repeated, after the file was cut back
/// to what is known to be written: no bytes are doubled.
///
/// Throws:  Error{data} naming the file if it cannot be opened or written, or is a link or a FIFO;
///          StorageError if the storage does not answer, has no room for the file, or more than
///          kMaxWaitingBytes wait for room.
/// Threads: one caller.
class AppendedFile {
 public:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{1} << 24;

  enum class Start {
    empty,    ///< a file that is there loses its content
    appended  ///< bytes go after those that are there
  };
  /// parts: what the file consists of, for messages: "lines".
  AppendedFile(std::string path, Start start, std::string_view parts);
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  ~AppendedFile();

  /// Appends the bytes; they have left the process on return, if the disk has room.
  void write(std::string_view bytes);
  /// Appends a line of JSON. Numbers keep every bit; one that is not finite is to be a text, since
  /// JSON has none.
  void write_line(const nlohmann::ordered_json& line) { write(line.dump() + "\n"); }

  /// Nothing follows: waits a while for the room that is missing.
  ///
  /// Throws: as write, also if something is lost because it still waits for room.
  void finish();

 private:
  [[nodiscard]] bool write_waiting(bool waits_for_room);
  [[nodiscard]] bool open_again();

  std::string path_;
  Start start_;
  std::string_view parts_;
  base::Descriptor file_;    // from the first write on
  std::string waiting_;      // what the disk has not taken
  ino_t inode_ = 0;          // of the file
  off_t size_ = 0;           // bytes before those that wait
  bool has_warned_ = false;  // that something waits
};

/// Removes everything from the first line of a later step than `step` on, lines that cannot be
/// read, which a warning counts, and a last line that was cut short: a run that goes on from `step`
/// writes what came later anew. A file that does not exist is left so.
///
/// Throws: Error{data} naming the file if it cannot be read or written.
void cut_back(const std::string& path, std::int64_t step);

/// Returns whether the file has an "eval" line of this step. A file that cannot be read for good
/// has none.
[[nodiscard]] bool has_evaluation(const std::string& path, std::int64_t step);

/// The path of the newest checkpoint that the file names as made or resumed from; empty: none.
/// Skips lines that cannot be read.
[[nodiscard]] std::string last_checkpoint(const std::string& path);

/// A number as metrics.jsonl writes it: "nan", "inf" or "-inf" where it is not finite.
[[nodiscard]] nlohmann::ordered_json json_number(double value);

}  // namespace dtrain::metrics
