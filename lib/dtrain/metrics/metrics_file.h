// RUN/metrics.jsonl: one JSON object a line, each written as soon as it is known.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "dtrain/metrics/appended_file.h"

namespace dtrain::metrics {

/// An AppendedFile of lines.
///
/// Throws:  as AppendedFile.
/// Threads: one caller.
class MetricsFile {
 public:
  using Start = AppendedFile::Start;
  MetricsFile(std::string path, Start start) : file_(std::move(path), start, "lines") {}

  /// Appends one line. Numbers keep every bit; a number that is not finite becomes a string ("nan",
  /// "inf", "-inf"), since JSON has none.
  void write(const nlohmann::ordered_json& line) { file_.write(line.dump() + "\n"); }

  /// As AppendedFile::finish.
  void finish() { file_.finish(); }

 private:
  AppendedFile file_;
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

/// A number as metrics.jsonl writes it.
[[nodiscard]] nlohmann::ordered_json json_number(double value);

}  // namespace dtrain::metrics
