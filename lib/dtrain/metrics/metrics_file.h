// RUN/metrics.jsonl: one JSON object a line, each written as soon as it is known.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/base/descriptor.h"

namespace dtrain::metrics {

/// The first line opens the file, so that a run that does not begin leaves an older one as it is.
///
/// A disk without room ends no run: a checkpoint may have filled it, and be removed again soon.
/// Lines wait in memory until there is room; a warning tells so, and at destruction what is lost.
///
/// Throws:  Error{data} naming the file if it cannot be opened or written, is a link or a FIFO,
///          or if more than kMaxWaitingBytes wait.
/// Threads: one caller.
class MetricsFile {
 public:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{1} << 24;

  enum class Start {
    empty,    ///< a file that is there loses its content
    appended  ///< lines go after those that are there
  };
  MetricsFile(std::string path, Start start);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  /// Appends one line; it has left the process on return, if the disk has room. Numbers keep every
  /// bit; a number that is not finite becomes a string ("nan", "inf", "-inf"), since JSON has none.
  void write(const nlohmann::ordered_json& line);

  /// No line follows.
  ///
  /// Throws: Error{data} naming the file if lines still wait for room, which are lost.
  void finish();

 private:
  [[nodiscard]] bool write_waiting();

  std::string path_;
  Start start_;
  base::Descriptor file_;    // from the first line on
  std::string waiting_;      // text that the disk has not taken
  bool has_warned_ = false;  // that lines wait
};

/// Removes everything from the first line of a later step than `step` on, lines that cannot be
/// read, which a warning counts, and a last line that was cut short: a run that goes on from `step`
/// writes what came later anew. A file that does not exist is left so.
///
/// Throws: Error{data} naming the file if it cannot be read or written.
void cut_back(const std::string& path, std::int64_t step);

/// Returns whether the file has an "eval" line of this step. A file that cannot be read has none.
[[nodiscard]] bool has_evaluation(const std::string& path, std::int64_t step);

/// The path of the newest checkpoint that the file names as made or resumed from; empty: none.
/// Skips lines that cannot be read.
[[nodiscard]] std::string last_checkpoint(const std::string& path);

/// A number as metrics.jsonl writes it.
[[nodiscard]] nlohmann::ordered_json json_number(double value);

}  // namespace dtrain::metrics
